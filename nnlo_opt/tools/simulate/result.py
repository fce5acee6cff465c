"""Result of a simulated search, computed from its ledger."""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from nnlo_opt.app.reporting.results import block_utilization
from nnlo_opt.core.trials.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile, maximum of some durations; zeros if there are none."""

    median_s: float
    percentile_99_s: float
    max_s: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        ordered = sorted(values) or [0.0]
        return cls(statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])


@dataclass(frozen=True, slots=True)
class Best:
    """Improvement: from `time_s` on, `trial` was the best, with this `figure_of_merit`."""

    time_s: float
    n_ended: int
    trial: int
    figure_of_merit: float
    #: difference to the optimum; None if the optimum is unknown
    regret: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Result of one simulated search. Times are virtual seconds, except `wall_s` and `cpu_s`."""

    n_blocks: int
    #: number of trials by state
    n_trials: dict[str, int]
    reason: str
    #: time from the start to the end of the last trial
    makespan_s: float
    #: share of the blocks' time spent on trials, as in `summary.json`; None if no time passed
    utilization: float | None
    #: the same share up to the last assignment, that is, while there were trials left to begin
    utilization_searching: float | None
    #: share of the makespan for which a team had an assignment, by the teams' clocks: time in which a message waits for
    #: the coordinator is not included; None if no time passed
    team_utilization: float | None
    #: time from the end of an assignment to the next order, over all teams
    dispatch_gap: Spread
    suggestion: Spread
    #: improvements in order of time
    best: tuple[Best, ...]
    #: real time of the simulation
    wall_s: float
    cpu_s: float

    @property
    def regret(self) -> float | None:
        """Regret of the best trial; None without a complete trial, or if the optimum is unknown."""
        return self.best[-1].regret if self.best else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self) | {"regret": self.regret}


def result_of(
    ledger: Ledger, optimum: float | None, *, team_busy_s: float, wall_s: float, cpu_s: float
) -> SimulationResult:
    """Return the result of a simulated search.

    Args:
        ledger: ledger of a single, finished session.
        optimum: best possible figure of merit; None if unknown.
        team_busy_s: mean seconds for which a team was busy.
        wall_s: real seconds of the simulation.
        cpu_s: CPU seconds of the simulation.
    """
    makespan_s = max((trial.ended_at_s or 0.0 for trial in ledger.trials), default=0.0)
    last_assigned_s = max((a.assigned_at_s for a in ledger.assignments), default=0.0)
    return SimulationResult(
        n_blocks=ledger.sessions[-1].n_blocks,
        n_trials={state: n for state, n in ledger.n_by_state().items() if n},
        reason=ledger.completed_because,
        makespan_s=makespan_s,
        utilization=block_utilization(ledger),
        utilization_searching=block_utilization(ledger, until_s=last_assigned_s),
        team_utilization=team_busy_s / makespan_s if makespan_s > 0 else None,
        dispatch_gap=Spread.of([a.waited_s for a in ledger.assignments if a.waited_s is not None]),
        suggestion=Spread.of(ledger.suggest_s),
        best=_improvements(ledger, optimum),
        wall_s=wall_s,
        cpu_s=cpu_s,
    )


def _improvements(ledger: Ledger, optimum: float | None) -> tuple[Best, ...]:
    sign = ledger.sign
    found: list[Best] = []
    for n_ended, trial in enumerate(ledger.ended, 1):
        figure = trial.figure_of_merit
        if figure is not None and (not found or sign * figure < sign * found[-1].figure_of_merit):
            regret = None if optimum is None else sign * (figure - optimum)
            found.append(Best(trial.ended_at_s or 0.0, n_ended, trial.number, figure, regret))
    return tuple(found)
