"""`nnlo-opt ensemble`: makes one model of several trained trials of a run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nnlo_opt.cli.arguments import Parser, checked_run
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.reporting.lines import counted, figure_text
from nnlo_opt.reporting.table import text_table
from nnlo_opt.run.option_kinds import PATH, whole
from nnlo_opt.run.option_table import NAMED_MODEL, SEED, Option

# fmt: off
#: options of `nnlo-opt ensemble`
OPTIONS = (
    Option("size", "N", whole(), default=10, example="25",
        help="largest number of selections; a trial may be selected several times"),
    Option("out", "FILE", PATH, shown="ensemble in the run directory", example="digits",
        help="file of the model; its ending is .keras, or .pt for torch"),
    NAMED_MODEL,
    replace(SEED, help="seed that divides the validation samples into two halves"),
)
# fmt: on


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Select trained trials of a run whose mean output is better than the best of them, by one half of the validation
    samples; measure the gain on the other half; save the mean as one model.
    """
    arguments = parser.values_of_run(argv)
    from nnlo_opt.cli.earlier_runs import model_of_run
    from nnlo_opt.run.ensemble import EnsembleSetup, make_ensemble

    path = Path(arguments.out or checked_run(arguments.run) / "ensemble").absolute()
    if not path.parent.is_dir():
        raise ConfigurationError(f"`--out` must name a file in a folder that exists. Received: `{path}`.")
    ledger, options, workload = model_of_run(arguments.run, arguments.model)
    setup = EnsembleSetup(
        run=arguments.run,
        ledger=ledger,
        options=options,
        workload=workload,
        size=arguments.size,
        seed=arguments.seed,
        path=path,
    )
    ensemble = make_ensemble(setup)
    figure, direction = str(ledger.identity.figure_of_merit), options.plan.direction
    shown = [f"{count} x trial {n}" if count > 1 else f"trial {n}" for n, count in ensemble.counts.items()]
    print(f"Ensemble of {counted(ensemble.n_trials, 'trial')}: the mean of {', '.join(shown)}.")
    print(figure_text(figure, direction))
    rows = [
        [f"best single, trial {ensemble.single}", *(f"{value:.6g}" for value in ensemble.single_figures)],
        ["ensemble", *(f"{value:.6g}" for value in ensemble.figures)],
    ]
    n_select, n_judge = ensemble.n_samples
    print(f"Of {n_select + n_judge:,} validation samples, {n_select:,} select and {n_judge:,} judge.")
    print(f"\n{text_table('', ['model', 'by those that select', 'by those that judge'], rows, left=True)}\n")
    gain = ensemble.single_figures[1] - ensemble.figures[1]
    print(f"Gain by the samples that have not selected: {-gain if direction == 'max' else gain:.4g}.")
    print(f"Saved `{ensemble.path}`.")
