"""Injectable clocks, so that tests and simulations can control time."""

import time
from typing import Protocol

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import MOST_SECONDS, MOST_UNIX_SECONDS


class Clock(Protocol):
    """Clock: `monotonic_s` for durations on this rank, `unix_s` for times written to files."""

    def monotonic_s(self) -> float: ...

    def unix_s(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


def check_start(unix_s: float, since_s: float) -> None:
    """Raise ConfigurationError if the clock shows a time that the journal cannot store.

    Args:
        unix_s: time of this start.
        since_s: seconds since the first start of the run.
    """
    if not 0 <= unix_s <= MOST_UNIX_SECONDS or abs(since_s) > MOST_SECONDS:
        raise ConfigurationError(
            "The clock of rank 0's machine must show a time after 1969 and before 8307, and within 300 years of the "
            f"first start of the run. Received: {unix_s:.0f} s after 1970, {since_s:.0f} s after the first start; set "
            "the clock, for example by `timedatectl set-ntp true`."
        )
