"""Formats values of a run for users."""

from collections.abc import Mapping
from typing import Any

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger

#: longest reason shown on a terminal, in characters
MOST_CHARACTERS = 300


def duration_text(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def value_text(value: Any) -> str:
    """Return a short text for a parameter's value: floats have four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def point_text(point: Mapping[str, Any]) -> str:
    """Return a point of the search space on one line."""
    return " ".join(f"{name}={value_text(value)}" for name, value in point.items())


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line with four decimals; an objective's reported value is called figure of merit."""
    return " ".join(f"figure of merit {v:.6g}" if name == "value" else f"{name} {v:.4f}" for name, v in metrics.items())


def for_terminal(reason: str) -> str:
    """Shorten a reason for the terminal; the journal and results.csv have the full text."""
    return reason if len(reason) <= MOST_CHARACTERS else reason[: MOST_CHARACTERS - 4] + " ..."


def counted(n: int, noun: str) -> str:
    """Return a number and its noun: 1 trial, 2 trials."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def counts_from_0_text(trial: int) -> str:
    """Return the beginning of a remark on a trial that counts epochs from 0."""
    return f"trial {trial} counts its epochs from 0: here each has 1 more, so that its epoch 0 is epoch 1"


def figure_text(name: str, direction: str) -> str:
    """Return the definition of the figure of merit as text."""
    return f"Figure of merit: {'what the objective returns' if name == 'value' else name}, {direction}imised."


def outcome_for_block(n_alive: int, n_ranks: int) -> str:
    """Return a clause on a block with `n_alive` ranks left, of which `n_ranks` train."""
    if n_ranks:
        spare = f", {n_alive - n_ranks} spare" * (n_alive > n_ranks)
        return f"the block continues with {n_ranks} rank{'s' * (n_ranks > 1)}{spare}"
    return f"the block is spare, because its last {n_alive} cannot train" if n_alive else "the block is lost"


def losses_text(ledger: Ledger) -> str:
    """Return a remark on the dead ranks of the last session and their blocks; empty if none died."""
    session = ledger.sessions[-1]
    parts = [
        f"{ev.ranks_text(sorted(ranks))} of block {block} ({outcome_for_block(*session.ranks_left[block])})"
        for block, ranks in sorted(session.lost_ranks.items())
    ]
    return f"Died: {'; '.join(parts)}." if parts else ""


def best_expected_text(ledger: Ledger) -> str:
    """Return a remark on the best expected trial; empty unless figures are noisy."""
    expected, best = ledger.best_expected, ledger.best()
    if expected is None:
        return ""
    if expected is best:
        return "Best expected, because figures of merit are noisy: the same trial"
    at = f", at {point_text(expected.point)}" * bool(expected.point)
    figure = f"figure of merit {expected.figure_of_merit:.6g}"
    return f"Best expected, because figures of merit are noisy: trial {expected.number}, {figure}{at}"


def constraints_text(ledger: Ledger) -> str:
    """Return a remark on how many complete trials are feasible; empty without outcome constraints."""
    known = [trial.feasible for trial in ledger.trials if trial.feasible is not None]
    keep = f"{sum(known) or 'none'} keep{'s' * (sum(known) < 2)} {' and '.join(map(str, ledger.constraints))}"
    return f"Of {counted(len(known), 'complete trial')}, {keep}." if ledger.constraints and known else ""


def outcome(ledger: Ledger, *, at_work: bool = True) -> str:
    """Return the number of trials in each state, on one line; `at_work`: True if the run may be active."""
    words = {} if at_work else {"running": "in progress when it was interrupted"}
    if n_infeasible := sum(trial.feasible is False for trial in ledger.trials):
        words["complete"] = f"complete ({n_infeasible} infeasible)"
    counts = ", ".join(f"{n} {words.get(state, state)}" for state, n in ledger.n_by_state().items() if n)
    return counts or "no trial yet"
