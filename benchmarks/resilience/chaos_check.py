"""What a disturbed run has to answer for: its journal, beside what its evaluations wrote down themselves. Pure."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Record = Mapping[str, Any]
#: clocks are read one after another: what is nearer than this says nothing of an order
CLOCK_S = 0.05
#: a trial whose ranks were killed so many times may be given up by the search, which says so
MAX_ATTEMPTS = 3


@dataclass(slots=True)
class Findings:
    """Everything that should not be, in words; all empty for a run in which nothing was lost."""

    #: results that the journal does not have, or had and has no longer
    lost: list[str] = field(default_factory=list)
    #: trials that were completed and then executed or recorded again
    twice: list[str] = field(default_factory=list)
    #: figures that are not those of the undisturbed run, or not what the evaluation returned
    wrong: list[str] = field(default_factory=list)
    #: trials that failed after ranks that trained them had been killed `MAX_ATTEMPTS` times
    n_given_up: int = 0
    #: evaluations that came to their end and were made again, as their end had not reached the journal
    n_repeated: int = 0
    #: evaluations of one point that were made at the same time, by ranks that should have been gone
    n_at_once: int = 0
    #: trials whose figure was compared with the undisturbed run; others had another number of ranks
    n_compared: int = 0


def outcomes(events: Sequence[Record], *, any_ranks: bool = False) -> dict[str, Any]:
    """Trial -> point, figure and ranks of an undisturbed run, for others to be compared with.

    `any_ranks`: the figure is the same whatever the number of ranks.
    """
    n_ranks = {event["trial"]: event["n_ranks"] for event in _of(events, "FoldAssigned")}
    points = {event["trial"]: event["point"] for event in _of(events, "TrialSuggested")}
    return {
        str(event["trial"]): {
            "point": points[event["trial"]],
            "figure": event["figure_of_merit"],
            "n_ranks": None if any_ranks else n_ranks[event["trial"]],
        }
        for event in _of(events, "TrialCompleted")
    }


def check(
    events: Sequence[Record], evaluations: Sequence[Record], reference: Mapping[str, Any], n_trials: int
) -> Findings:
    """What is wrong with a complete run of `n_trials`; every evaluation of the side record came to its end."""
    found = Findings()
    points = {event["trial"]: event["point"] for event in _of(events, "TrialSuggested")}
    completed = defaultdict(list)
    for event in _of(events, "TrialCompleted"):
        completed[event["trial"]].append(event)
    _check_ends(events, n_trials, completed, found)
    ended = defaultdict(list)
    for evaluation in evaluations:
        ended[_key(evaluation["point"])].append(evaluation)
    known = {_key(point) for point in points.values()}
    found.lost += [f"an evaluation at {key} of which the journal has no trial" for key in ended if key not in known]
    same = Counter(map(_key, points.values()))
    found.twice += [f"{n} trials at {key}" for key, n in same.items() if n > 1]
    first_unix_s = unix_0(events)
    for trial, (event, *_) in completed.items():
        own = ended[_key(points[trial])]
        completed_unix_s = first_unix_s + event["time_s"]
        before = [e for e in own if e["ended_unix_s"] <= completed_unix_s + CLOCK_S]
        later = [e for e in own if e["began_unix_s"] > completed_unix_s + CLOCK_S]
        if not before:
            found.wrong.append(f"trial {trial} is complete, and no evaluation of it had come to its end")
        if later:
            found.twice.append(f"trial {trial} was executed {len(later)} times after it was complete")
        found.n_repeated += max(0, len(own) - len(later) - 1)
        own.sort(key=lambda e: e["began_unix_s"])
        found.n_at_once += sum(b["began_unix_s"] < a["ended_unix_s"] for a, b in pairwise(own))
        if before and event["figure_of_merit"] not in [e["value"] for e in before]:
            values = [e["value"] for e in before]
            found.wrong.append(f"trial {trial} is {event['figure_of_merit']} in the journal, its evaluations {values}")
    _compare(events, points, completed, reference, found)
    return found


def _check_ends(
    events: Sequence[Record], n_trials: int, completed: Mapping[int, list[Record]], found: Findings
) -> None:
    """Every trial ends once, and so does every fold of it."""
    assigned = {event["assignment"]: event for event in _of(events, "FoldAssigned")}
    failed = {event["trial"]: event["reason"] for event in _of(events, "TrialFailed")}
    # Also what went on with the ranks that were left.
    losses = [*_of(events, "AssignmentLost"), *(e for e in _of(events, "RanksLost") if e.get("counts"))]
    n_killed = Counter(assigned[event["assignment"]]["trial"] for event in losses)
    for trial in range(n_trials):
        if trial in failed and n_killed[trial] >= MAX_ATTEMPTS:
            found.n_given_up += 1
        elif trial in failed:
            found.lost.append(f"trial {trial} failed: {failed[trial]}")
        elif trial not in completed:
            found.lost.append(f"trial {trial} has no result")
    found.lost += [f"trial {trial} is one too many" for trial in completed if trial >= n_trials]
    found.twice += [f"trial {trial} completed {len(ends)} times" for trial, ends in completed.items() if len(ends) > 1]
    folds = (assigned[event["assignment"]] for event in _of(events, "AssignmentFinished"))
    finished = Counter((event["trial"], event["fold"]) for event in folds)
    found.twice += [
        f"fold {fold} of trial {trial} finished {n} times" for (trial, fold), n in finished.items() if n > 1
    ]


def _compare(
    events: Sequence[Record],
    points: Mapping[int, Record],
    completed: Mapping[int, list[Record]],
    reference: Mapping[str, Any],
    found: Findings,
) -> None:
    """Points are always those of the undisturbed run; figures where as many ranks trained."""
    n_ranks = defaultdict(set)
    for event in _of(events, "FoldAssigned"):
        n_ranks[event["trial"]].add(event["n_ranks"])
    for trial, point in points.items():
        expected = reference[str(trial)]
        if point != expected["point"]:
            found.wrong.append(f"trial {trial} is at {point}, undisturbed at {expected['point']}")
        elif trial in completed and (expected["n_ranks"] is None or n_ranks[trial] == {expected["n_ranks"]}):
            found.n_compared += 1
            figure = completed[trial][0]["figure_of_merit"]
            if figure != expected["figure"]:
                found.wrong.append(f"trial {trial} is {figure}, undisturbed {expected['figure']}")


def changed(kept: Iterable[bytes], final: bytes) -> list[str]:
    """What the journal held at some moment (its whole lines) and does not hold at the end."""
    whole = [data[: data.rfind(b"\n") + 1] for data in kept]
    return [f"the first {len(data)} bytes of the journal have changed" for data in whole if not final.startswith(data)]


def unix_0(events: Sequence[Record]) -> float:
    """Unix time of second 0 of the journal."""
    return events[0]["unix_s"] - events[0]["time_s"] if events else 0.0


def recovery_s(events: Sequence[Record], struck_unix_s: float, blocks: Iterable[int]) -> tuple[float, bool] | None:
    """Seconds from a blow to work: until a trial that was under way on `blocks` trains again; and whether in place.

    Where a fold goes on with the ranks that are left, until it reports the end of an epoch or its own, which is later.
    None where none was under way there, or nothing was heard of it again.
    """
    zero = unix_0(events)
    assigned = {event["assignment"]: event for event in _of(events, "FoldAssigned")}
    open_then, blocks = {}, set(blocks)
    for event in events:
        if zero + event["time_s"] > struck_unix_s:
            break
        if event["event"] == "FoldAssigned" and event["block"] in blocks:
            open_then[event["assignment"]] = event["trial"]
        elif "assignment" in event and event["event"].removeprefix("Assignment") in ENDS:
            open_then.pop(event["assignment"], None)
    is_restarted, goes_on = False, set()
    for event in [event for event in events if zero + event["time_s"] > struck_unix_s]:
        kind, number = event["event"], event.get("assignment", -1)
        is_restarted |= kind == "RunStarted"
        if kind == "RanksLost" and number in open_then:
            goes_on.add(number)
        elif kind == "AssignmentLost":
            goes_on.discard(number)
        began = kind == "FoldBegan" and number not in open_then and assigned[number]["trial"] in open_then.values()
        if began or (kind in ("EpochEnded", "AssignmentFinished") and number in goes_on):
            return zero + event["time_s"] - struck_unix_s, not is_restarted
    return None


#: how an assignment may end
ENDS = {"Finished", "Failed", "Stopped", "Paused", "Lost", "Preempted"}


def _of(events: Sequence[Record], name: str) -> list[Record]:
    return [event for event in events if event["event"] == name]


def _key(point: Record) -> str:
    return json.dumps(point, sort_keys=True)
