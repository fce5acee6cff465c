"""Options of objectives, constraints, and of a command whose output contains them."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from nnlo_opt.app.run.options.table import BY_NAME, OPTIMIZATION_OPTIONS, read
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.trials.objectives import FIGURE, MEASURED, Comparison, Objective
from nnlo_opt.engine.objective.command import Command
from nnlo_opt.engine.objective.output import Output
from nnlo_opt.engine.objective.template import Template

#: options that only a command has
_OF_COMMAND = ("report_pattern", "result_pattern", "command_folder", "command_own")


def comparison_of(values: SimpleNamespace) -> Comparison:
    """Return the comparison of trials; ConfigurationError for contradictory options."""
    given = tuple(values.objective)
    if given and values.direction is not None:
        raise ConfigurationError(
            f"`{spelled('direction')}` must be left out with `{spelled('objective')}`, which has its own. Received: "
            f"{values.direction} and {', '.join(map(str, given))}."
        )
    if len(given) > 1 and values.target_objective is not None:
        raise ConfigurationError(
            f"`{spelled('target_objective')}` is for one objective: no single number can end a search for a Pareto "
            f"set. Received: {values.target_objective:g} with {len(given)} objectives; take "
            f"`{spelled('stop_after_no_improvement')}` or `{spelled('timeout')}`."
        )
    objectives = given or (Objective(FIGURE, values.direction or "min"),)
    others = {"epoch": values.objective_epoch, "function": values.figure_of_merit}
    return Comparison(objectives=objectives, constraints=tuple(values.outcome_constraint), **others)


def command_of(values: SimpleNamespace, comparison: Comparison) -> Command | None:
    """Return `--command`; None if it is not given."""
    patterns, model = (values.report_pattern, values.result_pattern), values.model or values.example
    others = {name: getattr(values, name) for name in _OF_COMMAND if getattr(values, name) not in (None, ())}
    if values.command is None and not others:
        return None
    if values.command is None or model:
        lone = f"`{BY_NAME[next(iter(others))].flag}` and no `--command`" if values.command is None else ""
        raise ConfigurationError(
            "A search is of a model or of a command, and only a command has patterns and folders. Received: "
            f"{lone or f'both `--command` and {model!r}'}; leave it out."
        )
    if values.command_own and values.command_folder == "here":
        raise ConfigurationError(
            "`--command-own` names entries that every trial has in its own folder. Received: "
            f"{shlex.join(values.command_own)} with `--command-folder here`, where all trials start in one folder; "
            "leave one of them out."
        )
    return Command(
        template=Template(values.command),
        names=_printed_names(comparison),
        patterns=patterns,
        folder=values.command_folder,
        own=tuple(dict.fromkeys(values.command_own)),
    )


def _printed_names(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of objectives that a script must print."""
    return tuple(objective.name for objective in comparison.objectives if objective.name not in (FIGURE, *MEASURED))


def output_options(given: Mapping[str, object]) -> tuple[Output, Comparison, Path]:
    """Return the parts of `--try-output`: output parser, comparison of trials, and file."""
    values = read(given, OPTIMIZATION_OPTIONS)
    comparison = comparison_of(values)
    patterns = (values.report_pattern, values.result_pattern)
    return Output(_printed_names(comparison), patterns), comparison, Path(values.try_output)


def check_objectives(comparison: Comparison, metrics: tuple[str, ...]) -> None:
    """Raise ConfigurationError for objectives or constraints on values that a fold does not measure."""
    for part in comparison.needed:
        if part.name not in metrics and part.name not in MEASURED:
            raise ConfigurationError(
                f"`{spelled('objective')}` and `{spelled('outcome_constraint')}` must name one of "
                f"{', '.join((*metrics, *MEASURED))}. Received: {part.name!r}."
            )
