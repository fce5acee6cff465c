"""What is written in the journal: one event a line.

Every event carries `time_s`, seconds since the start of the first run of this journal. Names and fields are a file
format: a field may be added with a default, nothing is renamed or removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from nnlo_opt.errors import JournalError

JOURNAL_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A command opened the run: the first line, and one more for each resume."""

    #: Unix time of this start, seconds
    unix_s: float
    n_ranks: int
    n_blocks: int
    #: what must not change between starts: search space, model, data, loss, folds, direction, seed
    identity: dict[str, Any]
    #: what may change, kept to be shown: command line, versions, training options
    settings: dict[str, Any] = field(default_factory=dict)
    #: what other runs had measured and the search began with (`search.base.Observation`); in the first start only
    adopted: list[dict[str, Any]] = field(default_factory=list)
    format: int = JOURNAL_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSuggested(Event):
    """The search chose a point; it is trial number `trial`. `suggest_s`: time the search took."""

    trial: int
    point: dict[str, Any]
    suggest_s: float = 0.0
    suggest_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldAssigned(Event):
    """One fold of a trial goes to a team of `n_ranks` ranks of block `block`."""

    assignment: int
    trial: int
    fold: int
    attempt: int
    block: int
    team: int
    n_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldBegan(Event):
    """The workers are ready and begin to train; `epoch` epochs were restored from a checkpoint.

    `waited_s`: time the team was idle before this order, measured by itself; None for its first assignment.
    """

    assignment: int
    epoch: int = 0
    waited_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded(Event):
    """`epoch` epochs are trained; metrics and figure of merit of the last one."""

    assignment: int
    epoch: int
    metrics: dict[str, float]
    checkpointed: bool = False
    figure_of_merit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentFinished(Event):
    """The fold is trained."""

    assignment: int
    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    reason: str = ""
    #: value of every objective by name, where there are several
    objectives: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentFailed(Event):
    """The fold cannot be trained."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentStopped(Event):
    """The fold was ended on purpose, its result is not needed."""

    assignment: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentPaused(Event):
    """The fold waits for the rest of its trial, or to be promoted, with a checkpoint of `epoch`."""

    assignment: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksLost(Event):
    """World ranks of a team have died, and the others have come together, or there are none.

    `n_alive` ranks of the whole block are left, of which `n_ranks` train; `assignment` was under way in the team (-1:
    none), and goes on with the others unless its end follows. `counts`: it goes on, and this counts against
    `--max-attempts`.
    """

    ranks: list[int]
    block: int
    team: int
    n_alive: int
    n_ranks: int
    assignment: int = -1
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentLost(Event):
    """The ranks that ran it are gone, or the job; the fold is assigned again. `counts`: against `--max-attempts`."""

    assignment: int
    reason: str = ""
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentPreempted(Event):
    """The fold was ended because the time of this start is over; it goes on from its last checkpoint."""

    assignment: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCompleted(Event):
    """All folds are finished: mean and standard deviation of their figures of merit, and of several objectives."""

    trial: int
    figure_of_merit: float
    figure_of_merit_std: float
    objectives: dict[str, float] = field(default_factory=dict)
    objectives_std: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailed(Event):
    """A fold failed, and with it the trial."""

    trial: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPaused(Event):
    """All folds are paused or finished: the trial waits at a rung. `figure_of_merit`: mean over the folds so far."""

    trial: int
    figure_of_merit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPromoted(Event):
    """The trial passes a rung, its `n_rungs`-th, and goes on."""

    trial: int
    n_rungs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPruned(Event):
    """The trial is given up. `figure_of_merit`: mean over the folds of the last that they have said."""

    trial: int
    figure_of_merit: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Event):
    """The search is over: nothing is left to do."""

    reason: str
    coordinator_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPreempted(Event):
    """The time of this start is over, in good order; the search is not."""

    reason: str
    coordinator_cpu_s: float = 0.0


#: what makes a start worth while; of epochs, those with a checkpoint
_LASTING = (AssignmentFinished, AssignmentFailed, TrialCompleted, TrialFailed)


def lasts(event: Event) -> bool:
    """Whether no later start has to repeat what the event tells of."""
    return event.checkpointed if isinstance(event, EpochEnded) else isinstance(event, _LASTING)


def ranks_text(ranks: Sequence[int]) -> str:
    """World ranks in words: rank 3, ranks 3 and 5."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def died_text(ranks: Sequence[int]) -> str:
    """Whose death it was, in words."""
    return f"{ranks_text(ranks)} died" if ranks else "ranks died"


EVENT_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}
#: names of an event's fields, looked up once: `dataclasses.asdict` would copy deeply and costs ten times as much
_FIELDS = {cls: tuple(f.name for f in fields(cls)) for cls in EVENT_TYPES.values()}

#: what sets a field of a new event: the `__init__` of a frozen class takes twice as long, which a replay would notice
_SETTERS: dict[type[Event], dict[str, Callable[[Event, Any], None]]] = {
    cls: {name: getattr(cls, name).__set__ for name in names} for cls, names in _FIELDS.items()
}


def event_to_json(event: Event) -> dict[str, Any]:
    """Plain data of an event, its name first; points and metrics are the event's own, to be read only."""
    cls = type(event)
    return {"event": cls.__name__, **{name: getattr(event, name) for name in _FIELDS[cls]}}


def event_from_json(values: dict[str, Any]) -> Event:
    """Inverse of `event_to_json`; JournalError for what is no event of ours, or of a later format."""
    name = values.get("event")
    try:
        cls = EVENT_TYPES[name]  # type: ignore[index]  # whatever it is, KeyError or TypeError
        setters = _SETTERS[cls]
        if len(values) == len(setters) + 1:
            event = object.__new__(cls)
            for field_name, value in values.items():
                if field_name != "event":
                    setters[field_name](event, value)
        else:  # by an older version, without the fields that came later
            event = cls(**{field_name: value for field_name, value in values.items() if field_name != "event"})
    except (KeyError, TypeError) as error:
        raise JournalError(
            f"The journal holds an event this version does not know: {name!r} ({error}); use the version that wrote it."
        ) from error
    if type(event) is RunStarted and event.format > JOURNAL_FORMAT:
        raise JournalError(
            f"A journal must have format {JOURNAL_FORMAT} or an older one. Received: {event.format}; use the version "
            f"that wrote it, nnlo_opt {event.settings.get('versions', {}).get('nnlo_opt', 'unknown')}, or a later one."
        )
    return event
