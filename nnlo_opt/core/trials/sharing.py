"""Folder of the jobs that share a run, as commands see it. `core.jobs` has the rules of the jobs themselves.

A job appends to its log about every 20 s, and writes a last line when it leaves. Commands tell by this whether anybody
works on the run: about, because clocks of machines differ. Nothing between jobs depends on it.
"""

from contextlib import suppress
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.owner import STALE_S, beats, touched_ns

#: folder in a run directory; only runs that jobs share have it
FOLDER = "jobs"
#: end of the log of a job that has left: `core.jobs.lines.Left`
LAST_WORDS = b'"line":"Left"}\n'


def may_be_shared_now(run: Path) -> bool:
    """Return True if a job may be alive: its log has grown within `STALE_S` seconds, and it has not left."""
    return any(beats(log) and not _has_left(log) for log in _logs(run))


def was_left(run: Path) -> bool:
    """Return True if jobs have shared the run, and the last one to write has left."""
    last = max(_logs(run), key=lambda log: touched_ns(log) or 0, default=None)
    return last is not None and _has_left(last)


def _logs(run: Path) -> list[SafePath]:
    return (SafePath(run) / FOLDER).glob("job-*.log")


def _has_left(log: SafePath) -> bool:
    with suppress(OSError), log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(LAST_WORDS)))
        return bool(file.read() == LAST_WORDS)
    return False


def refuse_shared(run: Path) -> None:
    """Raise ConfigurationError if jobs share the run now."""
    if may_be_shared_now(run):
        raise ConfigurationError(
            f"A run directory has one coordinator at a time, and jobs share `{run}` now: wait for all of them to end. "
            f"A job that was killed counts as alive for {STALE_S:g} s after its last line in `{run / FOLDER}`."
        )
