"""What a trainer rank finds out about model and data, for the coordinator."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nnlo_opt.core.base.records import checked
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.engine.models.builders import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that the coordinator needs to know about the user's model and data.

    A trainer rank sends it as a message, because the coordinator does not import the user's modules.
    """

    #: name of the model
    model: str
    kind: Kind
    #: absolute path and checksum of the model file
    source: str
    sha256: str
    #: name of a function that only the user's script can call; empty if executing `source` defines it
    function: str = ""
    #: see `ModelFile`
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] | None = None
    #: True for a composite model, which trains itself (`engine.models.composite`)
    trains_itself: bool = False
    #: optimizers of a composite model's parts
    optimizers: tuple[str, ...] = ()
    #: False for an objective without the argument `checkpoint`: its trials cannot be paused
    pauses: bool = True
    #: True if the model is compiled, and its `compile` arguments are used
    compiled: bool = False
    #: True if an optimizer of the model's framework takes the steps, where it brings one
    takes_optimizer: bool = False
    #: True if the model module has `get_callbacks`, which trainings call
    calls_back: bool = False
    #: training options from the model's `compile`, at the middle of the search space
    steps: Mapping[str, Any] = field(default_factory=dict)
    #: schedule that counts the steps of an optimizer that the framework runs, empty if there is none; and the steps
    #: after which it changes no more, None if it always does
    schedule: str = ""
    n_scheduled: int | None = None
    #: remarks on arguments of `compile`: overridden, used, and without effect; each empty if there are none
    replaced: str = ""
    taken: str = ""
    unused: str = ""
    #: None in a training
    space: Space | None = None
    #: name of the figure of merit
    figure: str = ""
    #: name and checksum of the user's figure of merit; None if there is none
    figure_function: dict[str, str] | None = None
    #: True if the metrics of `compile` or `get_metrics` are taken; those besides losses and accuracy, without `val_`;
    #: and those of them whose states add up over samples
    takes_metrics: bool = False
    metrics: tuple[str, ...] = ()
    merging: tuple[str, ...] = ()
    #: losses as text; None for an objective
    loss: str | None = None
    #: None for an objective
    data: DataFiles | None = None
    #: number of training samples of the smallest fold, or of batches if the data come in batches
    n_train_smallest: int = 0
    counts_batches: bool = False
    features_name: str | None = None
    labels_name: str | None = None
    #: remarks for the user
    remarks: tuple[str, ...] = ()

    @property
    def is_objective(self) -> bool:
        """True if a trial calls the user's objective."""
        return self.kind == "objective"

    @property
    def search_space(self) -> Space:
        """The search space of a search."""
        assert self.space is not None
        return self.space

    def steps_an_epoch(self, batch: int, n_workers: int) -> int:
        """Return the steps of an epoch in which all workers take part, in the smallest fold."""
        return math.ceil(self.n_train_smallest / ((1 if self.counts_batches else batch) * max(1, n_workers)))

    def to_json(self) -> dict[str, Json]:
        """Return plain data for a message."""
        space = None if self.space is None else self.space.to_json()
        return asdict(replace(self, space=None)) | {"space": space}

    @classmethod
    def from_json(cls, plain: dict[str, Json]) -> "Findings":
        """Inverse of `to_json`."""
        space, data = plain["space"], plain["data"]
        typed = {"space": space and Space.from_json(space), "data": data and checked(data, DataFiles)}
        lists = {name: tuple(plain[name]) for name in ("remarks", "optimizers", "metrics", "merging")}
        return cls(**plain | typed | lists)
