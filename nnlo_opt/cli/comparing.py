"""What trials are compared by and what a search may spend: options, and what they make."""

import argparse

from nnlo_opt.cli.values import finite, seconds, whole
from nnlo_opt.coordinator.instructions import Budget
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.trials.objectives import EPOCHS, FIGURE, MEASURED, Comparison, Objective


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """The options of `comparison_of`."""
    group = parser.add_argument_group("what trials are compared by")
    group.add_argument(
        "--objective",
        metavar="METRIC:DIRECTION",
        action="append",
        default=[],
        help="such as val_loss:min or val_acc:max; given several times, the trials that no other beats in all "
        "objectives are searched for (the Pareto set), and the first one is the figure of merit. A metric of one "
        f"output is name:metric:DIRECTION. Besides metrics: {', '.join(MEASURED)}; with an objective module: what its "
        "dict has, and train_s (default: figure_of_merit:min)",
    )
    group.add_argument(
        "--figure-of-merit",
        metavar="FUNCTION",
        help="file.py:function, module:function, or the name of a function of the model module: called with what the "
        "training of a fold has given, returns a number (default: 1 - val_acc, else val_loss)",
    )
    group.add_argument(
        "--objective-epoch",
        metavar="WHICH",
        default="last",
        help=f"{' or '.join(EPOCHS)}: epoch whose weights and metrics count, the last (with --early-stopping its best) "
        "or that in which the first objective was best (default: %(default)s)",
    )
    group.add_argument(
        "--direction",
        choices=("min", "max"),
        help="whether the value of an objective module, or of --figure-of-merit, is minimised or maximised, where no "
        "--objective says it (default: min)",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """The options of `budget_of`, and other reasons to stop."""
    group = parser.add_argument_group("when a search stops (may be changed on resume; running trials end first)")
    group.add_argument(
        "--num-iterations",
        metavar="TRIALS",
        type=whole(),
        default=10,
        help="trials in the journal at the end, failed ones included; may be raised on resume (default: %(default)s)",
    )
    group.add_argument(
        "--timeout",
        metavar="TIME",
        type=seconds,
        help="begin no trial after so many seconds, or HH:MM:SS, of searching, over all starts of the run",
    )
    group.add_argument(
        "--walltime",
        metavar="TIME",
        type=seconds,
        help="of this start, in seconds or as HH:MM:SS: begin no trial that would not end in time, by what trials have "
        "lasted; stop and checkpoint what still runs shortly before, and leave with code 75, to be resumed",
    )
    group.add_argument(
        "--trial-timeout",
        metavar="TIME",
        type=seconds,
        help="fail a trial of which a fold takes longer than so many seconds, or HH:MM:SS, since it was assigned, "
        "whether it trains or hangs (--hang-timeout is for ranks that do nothing); if its block is stuck in code of "
        "yours and does not come back, the search ends with code 1, to be resumed",
    )
    group.add_argument(
        "--stop-after-no-improvement",
        metavar="TRIALS",
        type=whole(),
        help="stop after so many trials in a row that are not better than those before; of several objectives, that do "
        "not enter the Pareto set",
    )
    add_target(group, "; not with several objectives")


def add_target(group: argparse._ActionsContainer, restriction: str = "") -> None:
    """`--target-objective`."""
    group.add_argument(
        "--target-objective",
        metavar="FIGURE",
        type=finite(),
        help=f"stop when a figure of merit is better than this{restriction}",
    )


def comparison_of(arguments: argparse.Namespace) -> Comparison:
    """What `--objective`, `--figure-of-merit`, `--objective-epoch` and `--direction` ask for; ConfigurationError."""
    given = tuple(map(Objective.parse, arguments.objective))
    if given and arguments.direction is not None:
        raise ConfigurationError(
            f"`--direction` must be left out with `--objective`, which has its own. Received: {arguments.direction} "
            f"and {', '.join(map(str, given))}."
        )
    if len(given) > 1 and arguments.target_objective is not None:
        raise ConfigurationError(
            "`--target-objective` is for one objective: no single number ends a search for a Pareto set. Received: "
            f"{arguments.target_objective:g} with {len(given)} objectives; take `--stop-after-no-improvement` or "
            "`--timeout`."
        )
    objectives = given or (Objective(FIGURE, arguments.direction or "min"),)
    return Comparison(objectives=objectives, epoch=arguments.objective_epoch, function=arguments.figure_of_merit)


def budget_of(arguments: argparse.Namespace) -> Budget:
    """What a search may spend besides trials, as far as it is known before it starts."""
    return Budget(
        timeout_s=arguments.timeout,
        n_without_improvement=arguments.stop_after_no_improvement,
        trial_timeout_s=arguments.trial_timeout,
    )
