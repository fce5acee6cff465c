"""Liveness of a job, as an observer judges it: its log has grown, seen by looks and timed by the observer's own clock.

Times in files and clocks of other machines decide nothing, and no decision about who may write or report depends on a
judgement: one that was wrong costs work, not results.
"""

from dataclasses import dataclass

DEFAULT_BEAT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of jobs in seconds."""

    #: longest time between two lines of a living job
    beat_s: float = DEFAULT_BEAT_S
    #: how long a log must not have grown for its job to count as gone
    limit_s: float = 120.0
    #: everybody who opens a file sees after this time what was synced; a successor waits so long for the last lines
    settle_s: float = 10.0

    @classmethod
    def with_limit(cls, limit_s: float) -> "Timing":
        """Return the times of jobs that count as gone after `limit_s` seconds of silence."""
        return cls(beat_s=min(DEFAULT_BEAT_S, limit_s / 6), limit_s=limit_s)


DEFAULT_TIMING = Timing()


class Watch:
    """Silence of one job.

    Between two looks at most `beat_s` count: an observer that was stopped itself, perhaps together with the job, has to
    look again and again before it calls the job gone.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        #: lines seen, and time of the last look
        self._n_lines = 0
        self._looked_at_s: float | None = None
        #: seconds without a new line
        self.silent_s = 0.0

    def look(self, n_lines: int, now_s: float) -> None:
        """Note that the log has `n_lines` complete lines; `now_s` was taken before they were read."""
        if n_lines > self._n_lines:
            self._n_lines, self.silent_s = n_lines, 0.0
        elif self._looked_at_s is not None:
            self.silent_s += min(now_s - self._looked_at_s, self._timing.beat_s)
        self._looked_at_s = now_s

    @property
    def is_silent(self) -> bool:
        """True if the job counts as gone."""
        return self.silent_s > self._timing.limit_s
