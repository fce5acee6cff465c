"""Events of the journal, one per line.

Every event carries `time_s`, seconds since the start of the first run of this journal. Names and fields are a file
format: fields may be added with a default, but nothing is renamed or removed.
"""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from nnlo_opt.core.base.errors import JournalError, UnreadableEventError
from nnlo_opt.core.base.files import parse_json
from nnlo_opt.core.base.records import Number, Reader, Record, Seconds, UnixSeconds, checked, field
from nnlo_opt.core.trials.identity import RunIdentity, StartSettings

JOURNAL_FORMAT = 1


class Observation(TypedDict):
    """Value measured by a trial of another run at a point of this search space."""

    point: dict[str, Any]
    value: float
    std: NotRequired[float | None]
    #: False if the trial violated an outcome constraint
    feasible: NotRequired[bool]
    #: name -> known value bounded by an outcome constraint
    outcomes: NotRequired[dict[str, float]]


class Event(Record, tag_field="event"):
    """Base class of all events."""

    time_s: Seconds


class RunStarted(Event):
    """A run starts or resumes: the first line, and one more for each resume."""

    #: Unix time of this start, seconds
    unix_s: UnixSeconds
    n_ranks: Number
    n_blocks: Number
    #: plain data of `core.trials.identity.RunIdentity`, and of `StartSettings`
    identity: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    #: observations of other runs, each an `Observation`; in the first start only
    adopted: list[dict[str, Any]] = field(default_factory=list)
    format: Number = JOURNAL_FORMAT
    #: bytes of an incomplete last write that this start has cut off the journal
    cut_bytes: Number = 0

    def __post_init__(self) -> None:
        if self.format > JOURNAL_FORMAT:
            versions = self.settings.get("versions")
            version = versions.get("nnlo_opt") if isinstance(versions, dict) else "unknown"
            raise JournalError(
                f"A journal must have format {JOURNAL_FORMAT} or an older one. Received: {self.format}; use the "
                f"version that wrote it, nnlo_opt {version}, or a later one."
            )
        RunIdentity.of(self.identity)
        StartSettings.of(self.settings)
        checked(self.adopted, list[Observation])


class TrialSuggested(Event):
    """The search chose a point for trial number `trial`; `suggest_s`: seconds that this took.

    `origin`: "enqueued", "start point" or "likely values"; empty if the algorithm chose the point.
    """

    trial: Number
    point: dict[str, Any]
    suggest_s: float = 0.0
    suggest_cpu_s: float = 0.0
    origin: str = ""


class FoldAssigned(Event):
    """One fold of a trial was assigned to a team of `n_ranks` ranks in block `block`."""

    assignment: Number
    trial: Number
    fold: Number
    attempt: Number
    block: Number
    team: Number
    n_ranks: Number


class FoldBegan(Event):
    """The training of a fold began; `epoch` epochs were restored from a checkpoint.

    `waited_s`: idle seconds of the team before this assignment, by its clock; None for its first.
    """

    assignment: Number
    epoch: Number = 0
    waited_s: float | None = None


class EpochEnded(Event):
    """Epoch number `epoch` of a fold ended with these metrics and figure of merit.

    `counts_from_0`: the user's code calls it `epoch - 1`.
    """

    assignment: Number
    epoch: Number
    metrics: dict[str, float]
    checkpointed: bool = False
    figure_of_merit: float | None = None
    counts_from_0: bool = False


class AssignmentFinished(Event):
    """An assignment ended with a trained fold."""

    assignment: Number
    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: Number
    train_s: float
    reason: str = ""
    #: objective -> value, if there are several
    objectives: dict[str, float] = field(default_factory=dict)


class AssignmentFailed(Event):
    """An assignment ended because its fold cannot be trained."""

    assignment: Number
    reason: str
    traceback: str = ""
    world_rank: Number = -1
    host: str = ""


class AssignmentStopped(Event):
    """An assignment was stopped because its result is not needed."""

    assignment: Number
    reason: str = ""


class AssignmentPaused(Event):
    """An assignment was paused with a checkpoint of `epoch`, until its trial is promoted."""

    assignment: Number
    epoch: Number


class RanksLost(Event):
    """World ranks of a team died; recorded after the remaining ranks have reformed, or if none is left.

    `n_alive` ranks of the whole block are left, of which `n_ranks` train. `assignment` was running in the team (-1:
    none); it continues with the remaining ranks unless its end follows. `counts`: it continues, but the loss counts
    against `--max-attempts`.
    """

    ranks: list[Number]
    block: Number
    team: Number
    n_alive: Number
    n_ranks: Number
    assignment: Number = -1
    counts: bool = False


class AssignmentLost(Event):
    """An assignment was lost with its ranks, the job, or its script (`of_script`); the fold is assigned again.

    `counts`: as in RanksLost.
    """

    assignment: Number
    reason: str = ""
    counts: bool = False
    of_script: bool = False


class AssignmentPreempted(Event):
    """An assignment was preempted; its fold resumes from its last checkpoint."""

    assignment: Number
    reason: str = ""


class TrialCompleted(Event):
    """A trial completed, as all its folds finished: mean and standard deviation of its figure and objectives."""

    trial: Number
    figure_of_merit: float
    figure_of_merit_std: float
    objectives: dict[str, float] = field(default_factory=dict)
    objectives_std: dict[str, float] = field(default_factory=dict)


class TrialFailed(Event):
    """A trial failed because one of its folds did."""

    trial: Number
    reason: str


class TrialPaused(Event):
    """A trial was paused at a rung, with all folds paused or finished; `figure_of_merit`: mean over them so far."""

    trial: Number
    figure_of_merit: float


class TrialPromoted(Event):
    """A trial was promoted past its rung number `n_rungs`."""

    trial: Number
    n_rungs: Number


class TrialPruned(Event):
    """A trial was pruned; `figure_of_merit`: mean over the folds of the last value that each reported."""

    trial: Number
    figure_of_merit: float
    reason: str


class BestExpected(Event):
    """The search chose the trial with the best expected figure of merit, because figures are noisy.

    `trial`: -1 if the search no longer finds noise.
    """

    trial: Number = -1


class TermBegan(Event):
    """Job `job` began to coordinate, in a run that several jobs share; it wrote all lines up to the next TermBegan."""

    term: Number
    job: Number


class JobJoined(Event):
    """Job `job` joined with `n_ranks` ranks in `n_teams` teams of `n_blocks` blocks, all numbered on through all jobs.

    `block_size`, `n_masters` and `n_processes` (ranks per worker): how its ranks form teams.
    """

    job: Number
    host: str
    n_ranks: Number
    n_teams: Number
    n_blocks: Number = 1
    block_size: Number = 1
    n_masters: Number = 1
    n_processes: Number = 1


class JobLeft(Event):
    """Job `job` left; no team of it has an assignment. `expelled`: it was silent, and its reports count no more."""

    job: Number
    reason: str = ""
    expelled: bool = False


class RunCompleted(Event):
    """The search ended."""

    reason: str
    coordinator_cpu_s: float = 0.0
    #: metrics of the best model on the test data, if there are test data
    test: dict[str, float] = field(default_factory=dict)


class RunPreempted(Event):
    """A start ended cleanly before the end of the search."""

    reason: str
    coordinator_cpu_s: float = 0.0


#: events that no message depends on: losing them in a crash does no harm, so they are not synced
NEWS: tuple[type[Event], ...] = (FoldBegan, EpochEnded)
#: events whose work no later start repeats; so are epochs with a checkpoint
_LASTING = (AssignmentFinished, AssignmentFailed, TrialCompleted, TrialFailed)


def lasts(event: Event) -> bool:
    """Return True if no later start has to repeat the recorded work."""
    return event.checkpointed if isinstance(event, EpochEnded) else isinstance(event, _LASTING)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return world ranks in words: rank 3, ranks 3 and 5."""
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def died_text(ranks: Sequence[int]) -> str:
    """Return the death of ranks in words."""
    return f"{ranks_text(ranks)} died" if ranks else "ranks died"


_READER = Reader[Event](Event.__subclasses__())
#: name of an event -> names of its fields
_FIELDS = {kind.__name__: {"event", *kind.__struct_fields__} for kind in Event.__subclasses__()}


def event_from_json(text: bytes) -> Event:
    """Return the event of one line's JSON.

    Raises:
        ValueError: `text` is not JSON.
        UnreadableEventError: `text` is one of our events with a value out of bounds.
        JournalError: `text` is not one of our events, or has a later format.
    """
    try:
        return _READER.read(text)
    except TypeError as error:
        if _is_known(text):
            raise UnreadableEventError(f"the event has an impossible value: {error}") from error
        raise JournalError(
            f"The journal holds an event that this version does not know ({error}): use the version that wrote it."
        ) from error


def _is_known(text: bytes) -> bool:
    """Return True for JSON of an event of this version, regardless of the values of its fields."""
    values = parse_json(text)
    return isinstance(values, dict) and {"event"} <= values.keys() <= _FIELDS.get(str(values.get("event")), set())


def events_from_json(text: bytes) -> list[Event]:
    """Return the events of a JSON array; TypeError for one that `event_from_json` refuses."""
    return _READER.read_all(text)


def readable_json(event: Event) -> bytes:
    """Return the JSON of an event for the journal, after checking that it can be read back.

    Raises:
        ValueError: a number is not finite, or data is circular.
        TypeError: a value is not plain data.
        JournalError: the event could not be read back.
    """
    text = event.to_json().encode()
    try:
        event_from_json(text)
    except (ValueError, JournalError) as error:
        raise JournalError(
            f"The journal accepts only events that can be read back. Received: {type(event).__name__} ({error})."
        ) from error
    return text
