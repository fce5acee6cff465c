"""Text for the status of a run, in a few lines or at the bottom of a terminal."""

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nnlo_opt.app.reporting.jobs import job_lines
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.status import Progress, Row, Status, progress_of, status_of
from nnlo_opt.app.reporting.words import counted, duration_text, for_terminal, point_text
from nnlo_opt.core.base.errors import NnloError
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState

#: True for ASCII only -> characters of a bar (done, to do), and of a curve from low to high
_BARS = {False: ("━", "─"), True: ("=", ".")}
_RAMPS = {False: "▁▂▃▄▅▆▇█", True: "_.-=+*%#"}
#: about a run that jobs have shared
_NO_JOB = "no job is there; start one by the same command with `--join`"
#: most running folds, and most reasons of failures, in a short status
_MOST = 5


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar of `width` characters for a fraction from 0 to 1."""
    done, to_do = _BARS[ascii_only]
    n_done = int(share * max(0, width))
    return done * n_done + to_do * (width - n_done)


def with_bar(share: float, text: str, width: int, ascii_only: bool = False) -> str:
    """Return a line of at most `width` characters: a bar if there is room, then `text`."""
    n_bar = min(40, width - len(text) - 1)
    return f"{bar(share, n_bar, ascii_only=ascii_only)} {text}" if n_bar >= 5 else text[:width]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, with all columns right-aligned except the last one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*map(str.rjust, row, widths), row[-1]]).rstrip() for row in rows]


def curve_text(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Return values as a sparkline of at most `width` characters; if several share one, it shows the last.

    Heights are logarithmic if the values are positive and fall by more than a decade.
    """
    ramp, n_shown = _RAMPS[ascii_only], min(len(values), max(0, width))
    shown = [values[(i + 1) * len(values) // n_shown - 1] for i in range(n_shown)]
    if min(shown, default=0.0) > 0 and shown[0] > 10 * shown[-1]:
        shown = [math.log(value) for value in shown]
    low, span = min(shown, default=0.0), (max(shown, default=0.0) - min(shown, default=0.0)) or 1.0
    return "".join(ramp[round((value - low) / span * (len(ramp) - 1))] for value in shown)


def state_text(status: Status) -> str:
    """Describe the state of a run, and the time it has taken."""
    because, after = f" ({status.reason})" * bool(status.reason), f" after {duration_text(status.elapsed_s)}"
    match status.state:
        case RunState.WAITING:
            return "waiting for the first line of the journal"
        case RunState.RUNNING:
            return f"running for {duration_text(status.elapsed_s)}" + f", but {_NO_JOB}" * status.lacks_jobs
        case RunState.DEAD:
            return f"dead{after}: {_NO_JOB if status.lacks_jobs else 'no process is at work on it'}"
    return f"{status.state}{because}{after}" + f": {_NO_JOB}" * status.lacks_jobs


def progress_text(progress: Progress, left_s: float | None) -> str:
    """Return how many trials or epochs are done, with the time left."""
    n_all = f"/{progress.n_all}" if progress.n_all is not None else ""
    left = "" if left_s is None else f", about {duration_text(left_s)} left"
    return f"{progress.n_done}{n_all} {progress.unit}s{left}"


def counts_text(status: Status) -> str:
    """Return the number of trials in each state, and how busy the blocks are."""
    words = {} if status.state is RunState.RUNNING else {"running": "in progress when it was interrupted"}
    states = ", ".join(f"{n} {words.get(state, state)}" for state, n in status.n_trials.items() if n)
    return "; ".join([states or "no trial yet", *_busy_text(status)])


def _busy_text(status: Status) -> list[str]:
    """Return how busy the blocks are; nothing if no job is there, and none has been."""
    share = None if status.block_utilization is None else f"{status.block_utilization:.0%}"
    if status.state.is_over and status.jobs:  # which have had any number of blocks
        return [f"blocks were busy {share} of their time"] * (share is not None)
    if not status.n_blocks:
        return []
    blocks = counted(status.n_blocks, "block")
    busy = f"{blocks} busy" if status.state.is_over else f"{status.n_blocks_busy} of {blocks} busy,"
    return [f"{busy} {share} of the time" if share else busy.rstrip(",")]


def best_text(status: Status) -> str:
    """Return the best trial; for several objectives, the best in the first one and the size of the Pareto set."""
    if status.best is None:
        return f"no {'feasible' if status.n_trials['complete'] else 'complete'} trial yet"
    figure = f"{status.best['figure_of_merit']:.6g} (trial {status.best['trial']})"
    several = f", Pareto set of {counted(len(status.pareto), 'trial')}" * bool(status.pareto)
    at = f", at {point_text(status.best['parameters'])}" * bool(status.best["parameters"])
    return figure + several + at


def failure_text(failure: Row) -> str:
    """Return a reason of failures with the number of trials and the first of them."""
    first, *more = failure["trials"]
    which = f"{len(more) + 1} trials, first {first}" if more else f"trial {first}"
    return f"{which}: {for_terminal(' '.join(failure['reason'].split()))}"


def epoch_text(fold: Row) -> str:
    """Return the last epoch of a running fold, and the total number if known."""
    return f"{fold['epoch']}/{fold['n_epochs']}" if fold["n_epochs"] else str(fold["epoch"] or "-")


def figure_text_of(figure: float | None) -> str:
    """Return a figure of merit; a dash if there is none."""
    return "-" if figure is None else f"{figure:.6g}"


def status_lines(status: Status) -> list[str]:
    """Return the state of a run on a few lines."""
    lines = [f"`{status.run}`, {status.kind}: {state_text(status)}."]
    if status.state is RunState.WAITING:
        return lines
    lines.append(f"Done: {progress_text(status.progress, status.left_s)} ({counts_text(status)}).")
    lines.append(f"Best: {best_text(status)}.")
    has_folds = any(fold["fold"] for fold in status.running)
    for fold in status.running[:_MOST]:
        which = f"Trial {fold['trial']}" + f" fold {fold['fold']}" * has_folds
        figure = f"figure of merit {figure_text_of(fold['figure_of_merit'])}"
        took = duration_text(fold["running_s"])
        lines.append(f"{which} on block {fold['block']}: epoch {epoch_text(fold)}, {figure}, for {took}.")
    if len(status.running) > _MOST:
        lines.append(f"… and {len(status.running) - _MOST} more.")
    lines += job_lines(status.jobs, is_over=status.state.is_over)
    lines += [f"Failed: {failure_text(failure)}" for failure in status.failures[:_MOST]]
    return lines + [status.losses] * bool(status.losses)


def print_status(run: Path, *, as_json: bool) -> None:
    """Print the status of a run in a few lines, or as one JSON object. Raises like `journal.load_events`."""
    at_work = may_be_at_work(run)  # check this first: a run that ends now would seem dead
    status = status_of(read_ledger(run), run, time.time(), at_work=at_work)
    print(json.dumps(status.to_json()) if as_json else "\n".join(status_lines(status)), flush=True)


def has_printed_status(argv: Sequence[str]) -> bool:
    """Print the state of a run, for scripts that ask often, without the imports of a parser.

    Returns:
        False if the command has to say what is wrong with the request.
    """
    words = [word for word in argv if word != "--json"]
    if len(words) != 1 or words[0].startswith("-"):
        return False
    with suppress(NnloError, OSError):
        print_status(Path(words[0]), as_json=len(words) < len(argv))
        return True
    return False


def bottom_line(ledger: Ledger, now_s: float, width: int, *, ascii_only: bool = False) -> str:
    """Return one line of `width` characters about a running run: a bar, the time left, the best trial.

    Args:
        ledger: trials of the run; another thread may be adding to it.
        now_s: seconds since the first start.
        width: characters of the line.
        ascii_only: True if the terminal only supports ASCII.
    """
    progress, best = progress_of(ledger), ledger.best()
    left_s = None if progress.end_s is None else max(0.0, progress.end_s - now_s)
    parts = [progress_text(progress, left_s)]
    if best is not None:
        parts.append(f"best {best.figure_of_merit:.6g} (trial {best.number})")
    return with_bar(progress.share, " | ".join(parts), width, ascii_only)
