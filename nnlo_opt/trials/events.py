"""What is written in the journal: one event a line.

Every event carries `time_s`, seconds since the start of the first run of this journal. Names and fields are a file
format: a field may be added with a default, nothing is renamed or removed.
"""

from collections.abc import Sequence
from typing import Any

from nnlo_opt.errors import JournalError
from nnlo_opt.records import Reader, Record, field

JOURNAL_FORMAT = 1


class Event(Record, tag_field="event"):
    """Base of all events."""

    time_s: float


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

    def __post_init__(self) -> None:
        if self.format > JOURNAL_FORMAT:
            versions = self.settings.get("versions")
            version = versions.get("nnlo_opt") if isinstance(versions, dict) else "unknown"
            raise JournalError(
                f"A journal must have format {JOURNAL_FORMAT} or an older one. Received: {self.format}; use the "
                f"version that wrote it, nnlo_opt {version}, or a later one."
            )


class TrialSuggested(Event):
    """The search chose a point; it is trial number `trial`. `suggest_s`: time the search took."""

    trial: int
    point: dict[str, Any]
    suggest_s: float = 0.0
    suggest_cpu_s: float = 0.0


class FoldAssigned(Event):
    """One fold of a trial goes to a team of `n_ranks` ranks of block `block`."""

    assignment: int
    trial: int
    fold: int
    attempt: int
    block: int
    team: int
    n_ranks: int


class FoldBegan(Event):
    """The workers are ready and begin to train; `epoch` epochs were restored from a checkpoint.

    `waited_s`: time the team was idle before this order, measured by itself; None for its first assignment.
    """

    assignment: int
    epoch: int = 0
    waited_s: float | None = None


class EpochEnded(Event):
    """`epoch` epochs are trained; metrics and figure of merit of the last one."""

    assignment: int
    epoch: int
    metrics: dict[str, float]
    checkpointed: bool = False
    figure_of_merit: float | None = None


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


class AssignmentFailed(Event):
    """The fold cannot be trained."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


class AssignmentStopped(Event):
    """The fold was ended on purpose, its result is not needed."""

    assignment: int
    reason: str = ""


class AssignmentPaused(Event):
    """The fold waits for the rest of its trial, or to be promoted, with a checkpoint of `epoch`."""

    assignment: int
    epoch: int


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


class AssignmentLost(Event):
    """The ranks that ran it are gone, or the job; the fold is assigned again. `counts`: against `--max-attempts`."""

    assignment: int
    reason: str = ""
    counts: bool = False


class AssignmentPreempted(Event):
    """The fold was ended because the time of this start is over; it goes on from its last checkpoint."""

    assignment: int
    reason: str = ""


class TrialCompleted(Event):
    """All folds are finished: mean and standard deviation of their figures of merit, and of several objectives."""

    trial: int
    figure_of_merit: float
    figure_of_merit_std: float
    objectives: dict[str, float] = field(default_factory=dict)
    objectives_std: dict[str, float] = field(default_factory=dict)


class TrialFailed(Event):
    """A fold failed, and with it the trial."""

    trial: int
    reason: str


class TrialPaused(Event):
    """All folds are paused or finished: the trial waits at a rung. `figure_of_merit`: mean over the folds so far."""

    trial: int
    figure_of_merit: float


class TrialPromoted(Event):
    """The trial passes a rung, its `n_rungs`-th, and goes on."""

    trial: int
    n_rungs: int


class TrialPruned(Event):
    """The trial is given up. `figure_of_merit`: mean over the folds of the last that they have said."""

    trial: int
    figure_of_merit: float
    reason: str


class RunCompleted(Event):
    """The search is over: nothing is left to do."""

    reason: str
    coordinator_cpu_s: float = 0.0


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


_READER = Reader[Event](Event.__subclasses__())


def event_from_json(text: bytes) -> Event:
    """Return the event of one line's JSON.

    Raises:
        ValueError: `text` is no JSON.
        JournalError: `text` is no event of ours, or one of a later format.
    """
    try:
        return _READER.read(text)
    except TypeError as error:
        raise JournalError(
            f"The journal holds an event that this version does not know ({error}): use the version that wrote it."
        ) from error


def events_from_json(text: bytes) -> list[Event]:
    """Return the events of a JSON array; TypeError for one that `event_from_json` refuses."""
    return _READER.read_all(text)
