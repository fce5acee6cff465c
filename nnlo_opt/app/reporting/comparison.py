"""Compares the results of several runs."""

from collections.abc import Sequence
from typing import Any

from nnlo_opt.app.reporting.results import summarise
from nnlo_opt.core.coordinator.instructions import searched_s
from nnlo_opt.core.trials.ledger import Ledger


def compared(states: Sequence[str], ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    """Return the results of each run, with the same keys.

    `common` is the best figure of merit that all runs have reached, None if there is none or they compare different
    figures; `time_to_common_s` and `trials_to_common` are the search time and the ended trials until then.
    """
    summaries = [summarise(ledger) for ledger in ledgers]
    bests = [summary["best"] for summary in summaries]
    known = [best["figure_of_merit"] for best in bests if best is not None]
    same = len({(summary["figure_of_merit"], summary["direction"]) for summary in summaries}) == 1
    common = None
    if same and len(known) == len(ledgers):
        # The worst of the runs' best figures is the best that all have reached.
        common = (min if summaries[0]["direction"] == "max" else max)(known)
    return [
        {
            "state": str(state),
            "figure_of_merit": summary["figure_of_merit"],
            "direction": summary["direction"],
            "best": None if best is None else best["figure_of_merit"],
            "best_trial": None if best is None else best["trial"],
            "best_expected_trial": None if (expected := summary["best_expected"]) is None else expected["trial"],
            **summary["n_trials"],
            "time_s": summary["wall_s"],
            "block_utilization": summary["block_utilization"],
            "common": common,
            **_reached(ledger, common),
        }
        for state, summary, best, ledger in zip(states, summaries, bests, ledgers, strict=True)
    ]


def _reached(ledger: Ledger, figure: float | None) -> dict[str, float | None]:
    """Return the search time in seconds and the number of ended trials until a figure of merit was reached."""
    for n, trial in enumerate(ledger.ended if figure is not None else (), 1):
        if trial.feasible and ledger.sign * (trial.figure_of_merit or 0.0) <= ledger.sign * (figure or 0.0):
            at_s = trial.ended_at_s or 0.0
            sessions = [session for session in ledger.sessions if session.started_at_s <= at_s]
            return {"time_to_common_s": searched_s(sessions, at_s), "trials_to_common": n}
    return {"time_to_common_s": None, "trials_to_common": None}
