"""Facts about a run in each start's first event: its identity, which must not change, and its settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

from nnlo_opt.core.base.records import Frozen, Number, Positive, checked, field

if TYPE_CHECKING:
    from nnlo_opt.core.space.space import Space
    from nnlo_opt.core.space.tuples import Tuples


#: part of an objective's identity that is the text of its command
COMMAND = "--command"
#: prefix of a note that is a digest
DIGEST = "sha256:"


class _Facts(Frozen):
    """Base class of facts; they keep the plain data they were read from, because other versions have other keys."""

    #: the complete plain data
    plain: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """Return the facts of plain data; TypeError for a value of the wrong type."""
        return _keeping(checked(plain, cls), plain)


def _keeping(read: Any, plain: Any) -> Any:
    """Attach the plain data that they were read from to facts, or to a list of them; return other values unchanged."""
    if isinstance(read, list):
        return [*map(_keeping, read, plain)]
    if not isinstance(read, _Facts):
        return read
    names = [name for name in read.__struct_fields__ if name in plain]
    return read.replaced(**{name: _keeping(getattr(read, name), plain[name]) for name in names} | {"plain": plain})


class ParameterFacts(_Facts, kw_only=True):  # for mypy, which does not see that all are
    """Parameter of a search space."""

    name: str
    kind: str = ""
    categories: list[Any] | None = None


class SearchSpace(_Facts):
    """Search space of a run."""

    parameters: list[ParameterFacts] = field(default_factory=list)


class ModelFile(Frozen):
    """Model of a run, or its objective."""

    name: str
    #: absolute path of the file, and its checksum
    source: str = ""
    sha256: str = ""
    #: name of a function that only the user's script defines; empty if executing `source` defines it
    function: str = ""
    #: for a command: its text, its patterns, and checksums of program and script; for a function: digests of its code
    #: and of the functions that it calls
    parts: dict[str, str] = field(default_factory=dict)
    #: parts whose change causes only a remark, because the objective may be the same: checksums of other files of a
    #: command, plain values that a function uses, or their digests; None in a run of an older version, and for a model
    notes: dict[str, str] | None = None


class DataFiles(Frozen):
    """Data of a run: files or samples made by the model module, and the number of samples."""

    #: (absolute path, number of samples) of every file
    files: tuple[tuple[str, int], ...] = ()
    n_train: int = 0
    n_validation: int = 0
    #: function of the model module -> fingerprint of the samples that it returns; empty for files
    made: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the journal has them."""
        files, made = [list(file) for file in self.files], {"made": self.made} if self.made else {}
        return {"files": files, "n_train": self.n_train, "n_validation": self.n_validation, **made}


class Training(_Facts):
    """Training options of a run; all of them are in `plain`."""

    epochs: Positive | None = None
    early_stopping: str | None = None
    target_metric: str | None = None


class PrunerFacts(_Facts):
    """Rules by which trials of a run are pruned."""

    max_epochs: Positive | None = None


class Followed(TypedDict):
    """What of a model holds in a run: its `compile`, metrics besides loss and accuracy, optimizers of its framework."""

    follows_compile: bool
    follows_metrics: bool
    follows_optimizer: bool


def followed_in(plain: Mapping[str, Any]) -> Followed:
    """Return what of a model holds in a run with this identity; earlier versions followed less."""
    names = {"follows_compile": "compiled", "follows_metrics": "metrics", "follows_optimizer": "optimizer"}
    return cast(Followed, {name: key in plain for name, key in names.items()})


class RunIdentity(_Facts):
    """Facts that must not change between starts, except that a training may get more epochs.

    A journal of an older version lacks some of them, which then have their defaults.
    """

    #: None if the run is a single training
    search_space: SearchSpace | None = SearchSpace()
    model: ModelFile = ModelFile(name="")
    #: None for a user's objective
    data: DataFiles | None = DataFiles()
    features_name: str | None = None
    labels_name: str | None = None
    direction: str = "min"
    #: names and directions
    objectives: list[str] = field(default_factory=list)
    #: outcome constraints, sorted
    constraints: list[str] = field(default_factory=list)
    figure_of_merit: str | None = None
    n_fold: Positive = 1
    seed: int | None = None
    training: Training = Training()
    pruner: PrunerFacts | None = None
    n_initial_points: Positive | None = None
    #: True if the point of all likely values is tried first; False in a run of an older version
    likely_first: bool = False
    warm_start: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> list[ParameterFacts]:
        """Parameters of the search space; empty for a training."""
        return [] if self.search_space is None else self.search_space.parameters

    @property
    def space(self) -> "Space | None":
        """The search space; None if there is none or it is unknown; ConfigurationError if of a later version."""
        if self.search_space is None or not self.search_space.plain:
            return None
        from nnlo_opt.core.space.space import Space  # imports NumPy, not needed for a status

        return Space.from_json(self.search_space.plain)

    @property
    def with_tuples(self) -> list[dict[str, Any]]:
        """JSON of the parameters that have tuples among their categories."""
        return [parameter.plain for parameter in self.parameters if "tuples" in parameter.plain]

    @property
    def tuples(self) -> "Tuples":
        """Categories of the search space that the user wrote as tuples."""
        from nnlo_opt.core.space.tuples import Tuples

        return Tuples(self.with_tuples)

    def as_of(self, later: "RunIdentity") -> "RunIdentity":
        """Return this identity with what a later start may change: training options, notes on an objective."""
        training, model = later.training, later.model
        known = self
        if training.plain:
            known = known.replaced(training=training, plain={**known.plain, "training": training.plain})
        if model.notes is not None:
            known = known.replaced(model=model, plain={**known.plain, "model": later.plain["model"]})
        return known


class SearchGoal(_Facts):
    """Goal of a search."""

    num_iterations: Number | None = None
    #: 0 if unknown
    max_attempts: Number = 0


class ScriptFolders(Frozen):
    """Starting folders of the scripts of `--command`; the defaults are those of runs before trials had folders."""

    #: `links`: a folder for each trial, with links to the content of the starting folder; `empty`: the same without
    #: links; `here`: the starting folder
    kind: str = "here"
    #: absolute path of the starting folder, in which this start began
    start: str = ""
    #: its entries when the run began, except those that are never linked
    names: list[str] = field(default_factory=list)
    #: entries that are private to each trial
    own: list[str] = field(default_factory=list)

    @property
    def linked(self) -> list[str]:
        """Entries that are linked into a trial's folder."""
        return [name for name in self.names if name not in self.own]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the journal has them."""
        return {"kind": self.kind, "start": self.start, "names": self.names, "own": self.own}


class StartSettings(_Facts):
    """Facts that each start may change."""

    command_line: list[str] = field(default_factory=list)
    #: `--command` of this start; empty if there is none, and in the first version
    command: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    hyper_opt: str = ""
    #: why `--hyper-opt auto` chose the algorithm; empty if the user chose it
    hyper_opt_because: str = ""
    plan: SearchGoal = SearchGoal()
    block_size: int | None = None
    #: working folder of the command
    folder: str = "."
    #: number of best trials whose weights are kept; 0 for all
    keep_weights: Number = 0
    #: starting folders of a command's scripts
    scripts: ScriptFolders = ScriptFolders()
    #: tools whose files are updated during the run
    mirror: list[str] = field(default_factory=list)
    #: True if data files may refer to other files; in older runs the command line shows it
    external_data: bool = False
    #: Python names of the training options without effect on the steps, given or not
    idle: list[str] = field(default_factory=list)

    @property
    def reads_external_data(self) -> bool:
        """True if data files may refer to other files."""
        # A shorter prefix is ambiguous: --ex could be --exchange.
        words = [word for word in self.command_line if len(word) >= len("--ext")]
        return self.external_data or any("--external-data".startswith(word) for word in words)
