"""Messages about a run as a whole, between the coordinator and every rank.

coordinator -> every rank    OpenRun, Shutdown
coordinator -> a trainer     Inspect, ExportModel         trainer -> coordinator   Inspected, ModelExported
any rank -> coordinator      PreemptionHeard
"""

from nnlo_opt.comm.messages import Json, Message
from nnlo_opt.records import field


class OpenRun(Message):
    """The run is open: its directory, and what every rank has to know of it."""

    directory: str
    settings: dict[str, Json] = field(default_factory=dict)


class Shutdown(Message):
    """Leave with this exit code."""

    exit_code: int


class Inspect(Message):
    """Read the model module and the data; `report`: say what they are (one rank), else only be ready.

    `space`: the search space where it does not come from the model module.
    """

    report: bool
    space: Json = None


class Inspected(Message):
    """What a trainer rank found: `findings` as plain data, or `error`, the sentence for the user."""

    findings: dict[str, Json] = field(default_factory=dict)
    error: str = ""


class PreemptionHeard(Message):
    """This rank was sent SIGUSR1; from any rank at any time, once."""


class ExportModel(Message):
    """Build the model at `point`, load `weights_path` into it and save it as `path`."""

    point: dict[str, Json]
    weights_path: str
    path: str


class ModelExported(Message):
    """The model is at `path`; or `error` says why not."""

    path: str
    error: str = ""
