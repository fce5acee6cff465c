"""Facts about a start for the journal: the identity of the run, whose change is refused, with the settings."""

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import nnlo_opt
from nnlo_opt.app.run.options.space_checks import idle_names
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.start.changed_model import differing, model_difference, model_remark
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import parse_json
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.comm.topology import count_workers
from nnlo_opt.core.search.design import design_size
from nnlo_opt.core.search.start_points import likely_values
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.identity import DataFiles, Followed, RunIdentity, ScriptFolders, StartSettings, followed_in
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import Objective
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RunRequest
from nnlo_opt.engine.search.custom import custom_name, is_custom
from nnlo_opt.engine.search.registry import is_grid

#: packages that take part in a run
_PACKAGES = ("mpi4py", "numpy", "scipy", "scikit-optimize", "optuna", "keras", "tensorflow", "h5py")
#: keys of an identity whose difference is described separately
_BY_ITSELF = {"search_space", "model", "data", "direction", "objectives", "constraints", "training", "warm_start"}
#: keys that follow from others; a run that gets more trials must keep its initial design
_DERIVED = {"n_initial_points", "figure_of_merit", "metrics"}
#: options of the other keys, if their names differ
_OPTIONS = {"figure_function": "figure_of_merit", "point": "from_run"}


def identity_of(options: Options, findings: Findings) -> RunIdentity:
    """Return the identity of the run that a command asks for."""
    weights = options.data.class_weights
    plain = {
        "search_space": None if findings.space is None else findings.space.to_json(),
        "model": {
            "name": findings.model,
            "source": findings.source,
            "sha256": findings.sha256,
            **({"function": findings.function} if findings.function else {}),
            **({"parts": findings.parts} if findings.parts else {}),
            **({} if findings.notes is None else {"notes": findings.notes}),
        },
        "data": None if findings.data is None else findings.data.to_json(),
        "loss": findings.loss,
        **({"compiled": True} if findings.compiled else {}),
        **({"optimizer": True} if findings.takes_optimizer else {}),
        **({"callbacks": True} if findings.calls_back else {}),
        **({"metrics": [*findings.metrics]} if findings.takes_metrics else {}),
        "n_fold": options.plan.n_fold,
        "fold_by": options.data.fold_by,
        "features_name": findings.features_name,
        "labels_name": findings.labels_name,
        # as text, because numbers are no names in JSON
        "class_weights": str(dict(sorted(weights.items()))) if isinstance(weights, Mapping) else weights,
        "sample_weights_name": options.data.sample_weights_name,
        "direction": options.plan.direction,
        # The default objective is kept under the name of its figure of merit.
        "objectives": [str(objective) for objective in options.comparison.several]
        or [f"{findings.figure}:{options.plan.direction}"],
        "constraints": sorted(map(str, options.comparison.constraints)),
        "objective_epoch": options.comparison.epoch,
        "figure_function": findings.figure_function,
        "pruner": None if options.plan.pruning is None else asdict(options.plan.pruning),
        "fold_racing": options.plan.fold_racing,
        "seed": options.seed,
        "training": options.training.to_json() | {"mode": custom_name(options.training.mode)},
        "point": options.point,
        "n_initial_points": design_size(
            findings.space, options.plan.num_iterations or None, has_bounds=bool(options.comparison.constraints)
        ),
        **({"likely_first": True} if _tries_likely(options, findings) else {}),
        "figure_of_merit": findings.figure,
        **({"backend": custom_name(options.backend)} if is_custom(options.backend or "") else {}),
        # Their observations are in the journal, so that the runs need not exist when this run is resumed.
        "warm_start": [str(path) for path in options.search.warm_start],
    }
    return RunIdentity.of(plain)


def _tries_likely(options: Options, findings: Findings) -> bool:
    """Return True if the point of all likely values is to be tried first: in any search but that of a grid."""
    return findings.space is not None and bool(likely_values(findings.space)) and not is_grid(options.search.algorithm)


def settings_of(options: Options, findings: Findings, scripts: ScriptFolders, program: str) -> dict[str, Any]:
    """Return the settings of a start, which the next one may change, as plain data."""
    external = options.data.external_data
    command = "" if options.command is None else options.command.template.text
    given = {
        "keep_weights": options.keep_weights,
        "mirror": [*map(custom_name, options.mirror)],
        "external_data": external,
        "command": command,
        "scripts": {} if options.command is None else scripts.to_json(),
        "idle": [] if findings.is_objective else idle_names(options.training, findings),
        "hyper_opt_because": options.hyper_opt_because,
        "compile": [*filter(None, (findings.replaced, findings.taken, findings.unused))],
    }
    return {
        "command_line": [program, *options.command_line],
        "versions": {} if options.run.is_temporary else versions(),
        "hyper_opt": custom_name(options.search.algorithm),
        "search": options.search.to_json(),
        "plan": asdict(options.plan),
        "block_size": options.block_size,
        "folder": str(options.run.start),
        **{name: value for name, value in given.items() if value},
    }


def versions() -> dict[str, str]:
    """Return the versions of all packages that take part, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"nnlo_opt": nnlo_opt.__version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def check_same(known: RunIdentity, asked: RunIdentity, run: str, request: RunRequest) -> str:
    """Return a sentence about what differs and need not matter; empty if nothing does.

    Raises:
        ConfigurationError: `asked` is another search than `known`; it names the first difference.
    """
    difference = _difference(known, asked, request.may_change)
    if not difference:
        return model_remark(known.model, asked.model)
    is_of_model = asked.search_space is not None and difference == model_difference(known.model, asked.model)
    learns = f", which learns from the trials of this one by `{spelled('warm_start', run)}`" * is_of_model
    raise ConfigurationError(
        f"`{request.restore_option}` resumes the same run only. In `{run}` {difference}. Give what the run "
        f"was started with, or start a new run under another name{learns}."
    )


def remark_on_workers(ledger: Ledger, options: Options, n_ranks: int) -> str:
    """Return a sentence if trainings resume on teams of another size, whose workers' own optimizers begin afresh."""
    rule = options.training.rule
    before, now = _ranks_before_and_now(ledger, options, n_ranks)
    if before == now or not rule.steps_at_workers:
        return ""
    return (
        f"The last start trained on {before} ranks a block, this one trains on {now}: trainings continue from the "
        f"central weights, and {rule.name}'s workers begin with a fresh state of their optimizers."
    )


def remark_on_schedule(ledger: Ledger, options: Options, findings: Findings, n_ranks: int) -> str:
    """Return a sentence if teams of another size now come to the end of an optimizer's schedule at another epoch."""
    before, now = _ranks_before_and_now(ledger, options, n_ranks)
    if before == now or not findings.schedule:
        return ""
    training = options.training

    def steps_an_epoch(n_ranks: int) -> int:
        every_rank = training.rule.averages_every_batch
        n_workers = count_workers(n_ranks, every_rank=every_rank, ranks_per_worker=options.n_processes)
        return findings.steps_an_epoch(training.batch, n_workers)

    steps_before, steps_now = steps_an_epoch(before), steps_an_epoch(now)
    said = f"{findings.schedule} counts steps, of which an epoch has {steps_now} now instead of {steps_before}"
    if findings.n_scheduled is None:
        return f"{said}."
    n_done = options.run.n_done(ledger) if ledger.is_training else 0
    begins_anew = training.rule.steps_at_workers and n_done > 0  # with the workers' optimizers
    n_left = findings.n_scheduled - (0 if begins_anew else n_done * steps_before)
    ends = n_done + max(0, n_left) / steps_now
    of = "" if ledger.is_training else "of a training from its beginning "
    return f"{said}: {of}it {'begins anew, and ' * begins_anew}ends after {ends:.4g} epochs."


def _ranks_before_and_now(ledger: Ledger, options: Options, n_ranks: int) -> tuple[int, int]:
    """Return the ranks of a block in the last start and in this one; equal if no training goes on, or it is unknown."""
    # A complete training may go on with more epochs.
    goes_on = ledger.is_training or not all(trial.state.ended for trial in ledger.trials)
    before, now = ledger.settings.block_size, options.block_size
    if ledger.is_training:
        before, now = ledger.sessions[-1].n_ranks, n_ranks
    return (before, now) if goes_on and before is not None else (now, now)  # early versions did not record it


def remark_on_command(last: StartSettings, options: Options) -> str:
    """Return a sentence if the command of a run of the first version now means other words; empty if not."""
    if options.command is None or last.command or not options.command.template.means_another:
        return ""
    return (
        "This run was begun by a version whose `{args}` wrote `--name value`; it writes `--name=value` now. If the "
        "script does not accept that, resume the run with `{args:words}` in its place."
    )


def refuse_run_of_script(request: RunRequest) -> None:
    """Raise ConfigurationError if a command is to resume a run whose trials are calls of a function of a script."""
    known = _resumed(request)
    if known is None or not known.model.function:
        return
    raise ConfigurationError(
        f"`{request.restore_option}` resumes runs whose model or objective is in a file. Received: "
        f"`{request.root / (request.name or '')}`, whose trials call `{known.model.function}` of the script "
        f"`{known.model.source}`. "
        "Resume it there by `opt_restore=True`."
    )


def what_is_followed(request: RunRequest) -> Followed:
    """Return what of a model holds in the run that is begun, or resumed as it was begun."""
    known = _resumed(request)
    return followed_in({"compiled": True, "metrics": [], "optimizer": True} if known is None else known.plain)


def calls_back(request: RunRequest) -> bool:
    """Return False if a run is resumed that was begun without `get_callbacks`, which had no effect once."""
    known = _resumed(request)
    return known is None or "callbacks" in known.plain


def _resumed(request: RunRequest) -> RunIdentity | None:
    """Return the identity of the run that is resumed; None if there is none, or it cannot be read yet."""
    if not request.restore or request.name is None:
        return None
    try:
        with (SafePath(request.place / request.name) / JOURNAL_NAME).open("rb") as journal:
            return RunIdentity.of(parse_json(journal.readline(MOST_BYTES))["identity"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # no such run; a damaged journal is refused when it is opened


def _difference(known: RunIdentity, asked: RunIdentity, may_change: Collection[str]) -> str:
    """Return the first difference in words; empty without one."""
    return (
        _space_difference(known, asked)
        or model_difference(known.model, asked.model)
        or _data_difference(known.data, asked.data)
        or _objective_difference(known, asked)
        or _constraint_difference(known, asked)
        or _option_difference(known, asked)
        or _warm_start_difference(known, asked)
        or _training_difference(known, asked, may_change)
    )


def _space_difference(known: RunIdentity, asked: RunIdentity) -> str:
    before, now = known.space, asked.space
    if before is None or now is None:
        was, is_now = ("a training" if space is None else "a search" for space in (before, now))
        return f"there is {was}, and this is {is_now}" * (was != is_now)
    difference = before.difference(now)
    return f"the search space differs: {difference}" if difference else ""


def _data_difference(known: DataFiles | None, asked: DataFiles | None) -> str:
    if known == asked:
        return ""
    what = "the list of files is not the same"
    if known is None or asked is None:
        what = "one has data files and the other has none"
    elif (known.n_train, known.n_validation) != (asked.n_train, asked.n_validation):
        what = (
            f"there were {known.n_train} training and {known.n_validation} validation samples, "
            f"now {asked.n_train} and {asked.n_validation}"
        )
    elif bool(known.made) != bool(asked.made):
        made = next(iter(known.made | asked.made))
        was, is_now = ("samples" if data.made else "files" for data in (known, asked))
        what = f"they were {was}, now {is_now}: see `{made}`"
    elif changed := [name for name in known.made | asked.made if known.made.get(name) != asked.made.get(name)]:
        what = f"`{changed[0]}` returns other samples than before; seed all random draws, shuffles and splits"
    elif changed := [old[0] for old, new in zip(known.files, asked.files, strict=False) if old != new]:
        what = f"the first file that is not the same is `{changed[0]}`"
    return f"the data differ: {what}"


def _objective_difference(known: RunIdentity, asked: RunIdentity) -> str:
    were, are = _objectives(known), _objectives(asked)
    if were == are:
        return ""
    if len(were) == len(are) == 1 and were[0].name == are[0].name:
        return differing(spelled("direction"), were[0].direction, are[0].direction)
    return differing(spelled("objective"), ", ".join(map(str, were)), ", ".join(map(str, are)))


def _objectives(identity: RunIdentity) -> list[Objective]:
    """Return the objectives of a run; a run from before there were objectives has one."""
    one = f"{identity.figure_of_merit}:{identity.direction}"
    return [Objective.parse(text) for text in identity.objectives or [one]]


def _constraint_difference(known: RunIdentity, asked: RunIdentity) -> str:
    if known.constraints == asked.constraints:
        return ""
    bounds = [", ".join(identity.constraints) or None for identity in (known, asked)]
    return differing(spelled("outcome_constraint"), *bounds)


def _option_difference(known: RunIdentity, asked: RunIdentity) -> str:
    """Compare all other keys. An option that came later than the run is no difference."""
    # Only a framework of another package is kept.
    without: dict[str, Any] = {"backend": None} if "backend" in known.plain else {}
    for key, value in (without | asked.plain).items():
        before = known.plain.get(key, value)
        if before == value or key in _BY_ITSELF | _DERIVED:
            continue
        if key == "pruner":
            return _pruner_difference(before, value)
        return differing(spelled(_OPTIONS.get(key) or key), before, value)
    return ""


def _pruner_difference(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    none: dict[str, Any] = {"name": None}
    was, is_now = (none | (plan or {}) for plan in (before, now))
    name = next(name for name in was | is_now if was.get(name) != is_now.get(name))
    return differing(spelled("pruner" if name == "name" else f"pruner_{name}"), was.get(name), is_now.get(name))


def _warm_start_difference(known: RunIdentity, asked: RunIdentity) -> str:
    if asked.warm_start in ([], known.warm_start):
        return ""
    return differing(spelled("warm_start"), ", ".join(known.warm_start) or None, ", ".join(asked.warm_start))


def _training_difference(known: RunIdentity, asked: RunIdentity, may_change: Collection[str]) -> str:
    # What came later than the run had no effect on it: its default.
    without = TrainingOptions().to_json()
    for name, value in asked.training.plain.items():
        before = known.training.plain.get(name, without.get(name, value))
        if before == value or name in may_change:
            continue
        if name == "shuffle":
            return either(differing("--no-shuffle", not before, not value), differing("shuffle", before, value))
        return differing(spelled(name), before, value)
    return ""
