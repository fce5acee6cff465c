"""Commands that act on a search: `nnlo-opt enqueue`, `nnlo-opt stop`."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser, checked_run, whole_number
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.words import counted, point_text
from nnlo_opt.app.run.options.kinds import FLAG, duration
from nnlo_opt.app.run.options.table import Option
from nnlo_opt.app.run.start.inbox import Enqueue, Stop, points_waiting, submit
from nnlo_opt.core.base.errors import EXIT_FAILURE, ConfigurationError
from nnlo_opt.core.search.start_points import check_start_points, holder_of, parse_start_point
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import read_owner
from nnlo_opt.core.trials.run_directory import INBOX_NAME, JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import may_be_at_work

#: seconds between two checks for an answer
_LOOK_S = 0.25
# fmt: off
_WAIT = Option("wait", "TIME", duration(0), default=5.0, example="60",
    help="longest time to wait for the coordinator's answer; a network file system may need a minute")
#: options of `nnlo-opt enqueue`
ENQUEUE_OPTIONS = (
    _WAIT,
    Option("new", "", FLAG, default=False, help="for a run that has not begun: the first start checks the point"),
)
#: options of `nnlo-opt stop`
STOP_OPTIONS = (
    Option("finish", "", FLAG, default=False,
        help="let running trials finish; without it they stop within --grace, with a checkpoint (except "
             "objectives, which have none)"),
    _WAIT,
)
# fmt: on


def enqueue(parser: Parser, argv: Sequence[str]) -> None:
    """Give a search a full or partial point to try next. A running search tries it at once, an interrupted one at its
    next start. The trial counts towards --num-iterations.
    """
    parser.add_run("")
    parser.add_argument("values", nargs="+", metavar="NAME=VALUE", help="values; the search chooses all others")
    arguments = parser.values(argv)
    point = _named_values(arguments.values)
    if arguments.new:
        _enqueue_before(arguments.run, point)
        return
    run, ledger = arguments.run, read_ledger(checked_run(arguments.run))
    space, is_at_work = ledger.identity.space, may_be_at_work(run)
    if space is None:
        raise ConfigurationError(f"`nnlo-opt enqueue` is for searches. Received: `{run}`, a training of one point.")
    if ledger.complete and not is_at_work:
        raise ConfigurationError(
            f"A point must be enqueued before its search is complete. Received: `{run}` ({ledger.completed_because}). "
            "Resume it by `--opt-restore` with more `--num-iterations`, and with the point as `--start-point`."
        )
    (point,) = check_start_points(space, [point])  # without the constraint, whose code only the search executes
    holds = holder_of(space, point)
    # A partial point that an earlier run has tried may become another point.
    adopted = [known["point"] for known in ledger.adopted] if space.contains(point) else []
    where = [f"trial {trial.number} has" for trial in ledger.trials if holds(trial.point)]
    where += ["an earlier run has tried (`--warm-start`)" for _ in filter(holds, adopted)]
    where += [f"waits in `{run / INBOX_NAME}` already" for _ in filter(holds, points_waiting(run))]
    if where:
        raise ConfigurationError(
            f"No point is tried twice. Received: {point_text(point)}, which {where[0]}. Give other values"
            f"{', or more of them' * (not space.contains(point))}."
        )
    path = submit(run, Enqueue(point=point))
    is_taken = is_at_work and _waited(arguments.wait, lambda: not path.exists())
    tried_by = next((t.number for t in read_ledger(run).trials if holds(t.point)), None) if is_taken else None
    n_asked = ledger.settings.plan.num_iterations or 0
    if tried_by is not None:
        how = f"trial {tried_by} tries it"
    elif is_taken and space.constraint is not None:
        raise ConfigurationError(
            f"A point must be one that the constraint of the search space accepts. Received: {point_text(point)}, "
            "which the search has refused; its output gives the reason. Give other values."
        )
    elif not is_at_work:
        how = f"nobody works on `{run}` now, so the next start tries it first"
        how += ", unless its constraint refuses it" * (space.constraint is not None)
    elif len(ledger.trials) >= n_asked > 0:
        how = f"all {counted(n_asked, 'trial')} of `--num-iterations` have begun, so the next start tries it"
    else:
        how = "it is tried after the suggestions that the search has made already, when a block is free"
    print(f"Enqueued {point_text(point)}: {how}.")


def _enqueue_before(run: Path, point: Point) -> None:
    """Store a point for a run that has not begun, whose search space is not known yet."""
    if (run / JOURNAL_NAME).exists():
        raise ConfigurationError(
            f"`--new` is for a run that has not begun. Received: `{run}`, which has; leave it out."
        )
    if point in points_waiting(run):
        raise ConfigurationError(
            f"No point is tried twice. Received: {point_text(point)}, which waits in `{run / INBOX_NAME}` already."
        )
    submit(run, Enqueue(point=point))
    print(f"Enqueued {point_text(point)}: the first start of `{run}` checks it, and tries it first.")


def _named_values(words: Sequence[str]) -> Point:
    """Parse words NAME=VALUE into values."""
    try:
        return parse_start_point(",".join(words))
    except ValueError:
        raise ConfigurationError(
            f"A point must be given as NAME=VALUE, each name once. Received: {' '.join(words)}. Write it as "
            "`learning_rate=0.01 n_units=64`."
        ) from None


def stop(parser: Parser, argv: Sequence[str]) -> int | None:
    """Stop a search, or one of its trials, from any machine with the run directory; --opt-restore resumes it."""
    parser.add_run("newest at work")
    parser.add_argument(
        "trial", nargs="?", type=whole_number, metavar="TRIAL", help="number of a trial; without it all end"
    )
    arguments = parser.values(argv)
    run, ledger = arguments.run, read_ledger(checked_run(arguments.run))
    owner, who = _holder_of(run, ledger)
    if not owner or not may_be_at_work(run):
        raise ConfigurationError(
            f"A run must be under way to be stopped. Received: `{run}`, on which no process works. `nnlo-opt show "
            f"{run}` shows how it has ended."
        )
    _check_trial(arguments, ledger)
    path = submit(run, Stop(owner=owner, trial=arguments.trial, finish=arguments.finish))
    what = f"`{run}`" if arguments.trial is None else f"trial {arguments.trial} of `{run}`"
    if not _waited(arguments.wait, lambda: not path.exists()):
        print(
            f"Requested the end of {what}. {who} has not answered in {arguments.wait:g} s; the request remains in "
            f"`{path}`."
        )
        return EXIT_FAILURE
    if arguments.trial is None:
        how = "after the trials under way" if arguments.finish else "as soon as its trials have a checkpoint"
        if not arguments.finish and ledger.identity.data is None:
            how = "within `--grace`, and an objective that has not returned by then starts over"
        resumes = "a job that joins later" if ledger.is_shared else "`--opt-restore` (a training: `--restore`)"
        print(f"{what} ends{' for all its jobs' * ledger.is_shared} {how}; {resumes} resumes it.")
    else:
        trial = read_ledger(run).trials[arguments.trial]
        print(f"Trial {trial.number} has ended: {trial.state}{f', {trial.reason}' * bool(trial.reason)}.")
    return None


def _holder_of(run: Path, ledger: Ledger) -> tuple[dict[str, Any], str]:
    """Return for `inbox.Stop` who holds a run, and its coordinator in words; nothing if nobody does."""
    if ledger.is_shared:
        return {"job": max(ledger.jobs, default=0)}, f"Job {ledger.leader}, which coordinates,"
    owner = read_owner(run) or {}
    return owner, f"Process {owner.get('pid')} on {owner.get('host')}"


def _check_trial(arguments: argparse.Namespace, ledger: Ledger) -> None:
    """Raise ConfigurationError for a trial that cannot be stopped."""
    number, n_trials, wrong = arguments.trial, len(ledger.trials), ""
    if number is None:
        return
    if not 0 <= number < n_trials:
        wrong = f"{number}, of {counted(n_trials, 'trial')} numbered from 0"
    elif ledger.trials[number].state.ended:
        wrong = f"trial {number}, which is {ledger.trials[number].state}"
    elif arguments.finish or ledger.is_training:
        remedy = "with `--finish`; leave one out" if arguments.finish else "of a training; leave it out"
        wrong = f"trial {number} {remedy}"
    if wrong:
        raise ConfigurationError(
            f"TRIAL must be a trial of a search that is under way. Received: {wrong}. `nnlo-opt show {arguments.run}` "
            "shows them."
        )


def _waited(seconds: float, has_come: Callable[[], bool]) -> bool:
    """Wait until `has_come` returns True; return False after `seconds`."""
    until_s = time.monotonic() + seconds
    while not has_come():
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_S)
    return True
