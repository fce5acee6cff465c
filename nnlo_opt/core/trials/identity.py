"""Facts about a run that its journal repeats at each start: its identity, which must not change, with its settings."""

from typing import TYPE_CHECKING, Any, Self

from nnlo_opt.core.base.records import Frozen, Number, Positive, checked, field

if TYPE_CHECKING:
    from nnlo_opt.core.space.space import Space
    from nnlo_opt.core.space.tuples import Tuples


#: name of the part of an objective that is the text of its command
COMMAND = "--command"
#: beginning of a note that is a digest of a value
DIGEST = "sha256:"


class _Facts(Frozen):
    """Base of facts that keep the plain data they were read from whole, as other versions know other keys."""

    #: the plain data
    plain: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Self:
        """Return the facts of plain data; TypeError if one has a type that no reader could use."""
        return _keeping(checked(plain, cls), plain)


def _keeping(read: Any, plain: Any) -> Any:
    """Return facts, or a list of them, with the plain data that they were read from; other values as they are."""
    if isinstance(read, list):
        return [*map(_keeping, read, plain)]
    if not isinstance(read, _Facts):
        return read
    names = [name for name in read.__struct_fields__ if name in plain]
    return read.replaced(**{name: _keeping(getattr(read, name), plain[name]) for name in names} | {"plain": plain})


class Parameter(_Facts, kw_only=True):  # for mypy, which else misses that all are
    """Parameter of a search space."""

    name: str
    kind: str = ""
    categories: list[Any] | None = None


class SearchSpace(_Facts):
    """Search space of a run."""

    parameters: list[Parameter] = field(default_factory=list)


class ModelFile(Frozen):
    """Model of a run, or its objective."""

    name: str
    #: absolute path of the file, and its checksum
    source: str = ""
    sha256: str = ""
    #: name of a function that only the user's script can call; empty if executing `source` defines it
    function: str = ""
    #: of a command: the command, its patterns, and checksums of the program and the script; of a function: digests of
    #: its code and of the functions that it calls
    parts: dict[str, str] = field(default_factory=dict)
    #: what is said if it differs, as it need not make another objective: checksums of the other files of a command,
    #: plain values that a function names, or digests of them; None in a run of an older version, and for a model
    notes: dict[str, str] | None = None


class DataFiles(Frozen):
    """Data files of a run, and the number of their samples."""

    #: (absolute path, number of samples) of every file
    files: tuple[tuple[str, int], ...] = ()
    n_train: int = 0
    n_validation: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the journal has them."""
        files = [list(file) for file in self.files]
        return {"files": files, "n_train": self.n_train, "n_validation": self.n_validation}


class Training(_Facts):
    """Training options of a run; `plain` has all of them."""

    epochs: Positive | None = None
    early_stopping: str | None = None
    target_metric: str | None = None


class Pruner(_Facts):
    """Rules by which trials of a run are pruned."""

    max_epochs: Positive | None = None


class RunIdentity(_Facts):
    """Facts that must not change between starts; but a training may be given more epochs.

    A journal of an older version lacks some of them, which then have their defaults.
    """

    #: None for a training
    search_space: SearchSpace | None = SearchSpace()
    model: ModelFile = ModelFile(name="")
    #: None for an objective
    data: DataFiles | None = DataFiles()
    features_name: str | None = None
    labels_name: str | None = None
    direction: str = "min"
    #: names with directions
    objectives: list[str] = field(default_factory=list)
    #: bounds that the best trial has to keep, sorted
    constraints: list[str] = field(default_factory=list)
    figure_of_merit: str | None = None
    n_fold: Positive = 1
    seed: int | None = None
    training: Training = Training()
    pruner: Pruner | None = None
    n_initial_points: Positive | None = None
    #: True if the point of all likely values is tried first; False in a run of an older version
    likely_first: bool = False
    warm_start: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> list[Parameter]:
        """Parameters of the search space; empty for a training."""
        return [] if self.search_space is None else self.search_space.parameters

    @property
    def space(self) -> "Space | None":
        """The search space, None if there is none or it is not known; ConfigurationError for one of a later version."""
        if self.search_space is None or not self.search_space.plain:
            return None
        from nnlo_opt.core.space.space import Space  # imports NumPy, which scripts that ask for the state do without

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
        """Return this identity with what a later start may change: training options, and notes on an objective."""
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
    #: 0: not known
    max_attempts: Number = 0


class ScriptFolders(Frozen):
    """Where the scripts of `--command` start. A run from before trials had folders has the defaults."""

    #: `links`: in a folder of the trial, with links to what is in the starting folder; `empty`: the same without links;
    #: `here`: in the starting folder
    kind: str = "here"
    #: the starting folder, an absolute path; it is where the present start has begun
    start: str = ""
    #: names at its top when the run began, without those that are never linked
    names: list[str] = field(default_factory=list)
    #: names that every trial has for itself
    own: list[str] = field(default_factory=list)

    @property
    def linked(self) -> list[str]:
        """Names to which a trial has links."""
        return [name for name in self.names if name not in self.own]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the journal has them."""
        return {"kind": self.kind, "start": self.start, "names": self.names, "own": self.own}


class StartSettings(_Facts):
    """Facts that each start may change."""

    command_line: list[str] = field(default_factory=list)
    #: `--command`, in whose words each of its trials was started; empty without one, and in the first version
    command: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    hyper_opt: str = ""
    #: reason for which `--hyper-opt auto` has chosen it; empty if the user has
    hyper_opt_because: str = ""
    plan: SearchGoal = SearchGoal()
    block_size: int | None = None
    #: working folder of the command
    folder: str = "."
    #: number of best trials whose weights are kept; 0: of all
    keep_weights: Number = 0
    #: where the scripts of a command start
    scripts: ScriptFolders = ScriptFolders()
    #: tools whose files are kept up to date
    mirror: list[str] = field(default_factory=list)
    #: True if the data files may lead to other files; without it the command line says so
    external_data: bool = False
    #: training options without effect on the steps, given or not, by their names in Python
    idle: list[str] = field(default_factory=list)

    @property
    def reads_external_data(self) -> bool:
        """True if the data files may lead to other files."""
        # A shorter word is ambiguous: --ex begins --exchange as well.
        words = [word for word in self.command_line if len(word) >= len("--ext")]
        return self.external_data or any("--external-data".startswith(word) for word in words)
