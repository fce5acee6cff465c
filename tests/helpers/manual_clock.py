"""Twin of the clock of the system."""


class ManualClock:
    """Clock that moves by `advance` only, for tests and simulations."""

    def __init__(self, start_s: float = 0.0) -> None:
        #: current time in seconds; never decreases
        self.now_s = start_s

    def monotonic_s(self) -> float:
        return self.now_s

    unix_s = monotonic_s

    def advance(self, seconds: float) -> None:
        """Advance the time by `seconds` (not negative)."""
        if seconds < 0:
            raise ValueError(f"A clock must not go back. Received: {seconds}.")
        self.now_s += seconds
