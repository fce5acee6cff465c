"""Messages about the run as a whole.

coordinator -> every rank    OpenRun, Renumbered, Shutdown
coordinator -> a trainer     Check, Inspect, ExportModel
a trainer -> coordinator     Prepared, Inspected, ModelExported
any rank -> coordinator      PreemptionHeard, SharedFilesChanged
"""

from nnlo_opt.core.base.records import field
from nnlo_opt.core.comm.messages import Json, Message
from nnlo_opt.core.trials.identity import ScriptFolders


class OpenRun(Message):
    """Open the run on this rank."""

    directory: str
    #: True if a trial is a call of the user's objective
    is_objective: bool = False
    #: names of the parameters of a search
    parameters: list[str] = field(default_factory=list)
    #: JSON of the parameters with tuples among their categories
    with_tuples: list[dict[str, Json]] = field(default_factory=list)
    #: metrics whose states add up over samples
    merging: list[str] = field(default_factory=list)
    #: folds of each trial, and the seed of the run
    n_fold: int = 1
    seed: int = 0
    #: fewest workers per master that the update rule needs after ranks have died
    least_children: int = 1
    #: True if the directory is removed after the search
    is_temporary: bool = False
    #: function of the model module -> fingerprint of the samples that it returns
    made: dict[str, str] = field(default_factory=dict)
    #: starting folders of scripts
    scripts: ScriptFolders = ScriptFolders()
    #: in a run that jobs share, for names: number of world rank 0 and of the first team among those of all jobs, and
    #: this job in words
    first_rank: int = 0
    first_team: int = 0
    job: str = ""


class Renumbered(Message):
    """This job has joined anew: its ranks and teams have these numbers from now on, and its files keep their names."""

    first_rank: int
    first_team: int


class Shutdown(Message):
    """End with this exit code."""

    exit_code: int


class Check(Message):
    """Check model, space and data before a framework is imported; answered by Inspected.

    The fields are as for Inspect.
    """

    space: Json = None
    follows_compile: bool = True
    follows_metrics: bool = True
    follows_optimizer: bool = True
    calls_back: bool = True
    n_workers: int = 1


class Inspect(Message):
    """Load the model module and the data. `report`: send the findings (one rank only); otherwise only get ready.

    `space`: search space, if it does not come from the model module. `follows_compile`, `follows_metrics`,
    `follows_optimizer` and `calls_back`: False for a run begun by a version that took nothing from the `compile` of a
    model, or ignored its metrics, optimizers of its framework, or callbacks. `n_workers`: most workers of a master.
    """

    report: bool
    space: Json = None
    follows_compile: bool = True
    follows_metrics: bool = True
    follows_optimizer: bool = True
    calls_back: bool = True
    n_workers: int = 1


class Prepared(Message):
    """Report that this rank has imported what training needs; the first answer to Inspect."""


class Inspected(Message):
    """Report the findings of a trainer rank as plain data, or `error`, the message for the user.

    After Check the findings lack the figure of merit, or are {}.
    """

    findings: dict[str, Json] = field(default_factory=dict)
    error: str = ""


class PreemptionHeard(Message):
    """Report that this rank received SIGUSR1; sent once, by any rank at any time."""


class SharedFilesChanged(Message):
    """Report that entries of the starting folder, which all trials link to, changed during a trial."""

    trial: int
    #: names of the changed entries
    names: list[str]


class ExportModel(Message):
    """Build the model at `point`, load `weights_path` into it and save it as `path`.

    `measure`: also evaluate it on the test data, if there are any.
    """

    point: dict[str, Json]
    weights_path: str
    path: str
    measure: bool = False


class ModelExported(Message):
    """Report that the model is at `path`, with its metrics on the test data, or the `error` that prevented either."""

    path: str
    metrics: dict[str, float] = field(default_factory=dict)
    error: str = ""
