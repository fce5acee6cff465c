"""Messages about a run as a whole.

coordinator -> every rank    OpenRun, Shutdown
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
    #: a trial is a call of the user's objective
    is_objective: bool = False
    #: names of the parameters of a search
    parameters: list[str] = field(default_factory=list)
    #: JSON of those of them that have tuples among their categories
    with_tuples: list[dict[str, Json]] = field(default_factory=list)
    #: folds of each trial, and the seed of the run
    n_fold: int = 1
    seed: int = 0
    #: workers that a master must still have for its update rule when ranks have died
    least_children: int = 1
    #: the directory is removed when the search has ended
    is_temporary: bool = False
    #: where scripts start
    scripts: ScriptFolders = ScriptFolders()


class Shutdown(Message):
    """End with this exit code."""

    exit_code: int


class Check(Message):
    """Look at model, space and data before a framework is imported; answered by Inspected.

    `space` and `follows_compile`: as of Inspect.
    """

    space: Json = None
    follows_compile: bool = True


class Inspect(Message):
    """Read the model module and the data. `report`: send the findings (one rank); otherwise only get ready.

    `space`: the search space, if it does not come from the model module. `follows_compile`: False for a run begun by a
    version that took nothing from the `compile` of a model.
    """

    report: bool
    space: Json = None
    follows_compile: bool = True


class Prepared(Message):
    """Report that this rank has imported what training needs; sent in answer to Inspect, before anything else."""


class Inspected(Message):
    """Report the findings of a trainer rank as plain data, or `error`, the sentence for the user.

    After Check there is no figure of merit in them, or they are {}.
    """

    findings: dict[str, Json] = field(default_factory=dict)
    error: str = ""


class PreemptionHeard(Message):
    """Report that this rank received SIGUSR1; sent by any rank at any time, once."""


class SharedFilesChanged(Message):
    """Report that files and folders of the starting folder, to which all trials have links, changed during a trial."""

    trial: int
    #: names at the top of the starting folder
    names: list[str]


class ExportModel(Message):
    """Build the model at `point`, load `weights_path` into it and save it as `path`.

    `measure`: then measure it on the test data, if there are any.
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
