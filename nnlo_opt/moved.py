"""Modules by the names that they had before: some are kept, of the others the error says where their names are now."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]
#: former module -> module of today, for files whose bytes are part of a run's identity, and for filters of warnings
KEPT = {
    "errors": "core.base.errors",
    "data.sets.showers": "engine.data.sets.showers",
}
#: former module -> its names in `nnlo_opt.extend`
MOVED = {
    "search.base": "History, SearchAlgorithm, Suggestion",
    "trials.trial": "TrialState",
    "search.random": "first_new, unseen_point",
    "search.pruning": "Decision, Pruner, Verdict",
    "search.curves": "Curve, Reports",
    "update_rules.rule": "Answer, GroupHalf, MasterHalf, UpdateRule, WorkerHalf",
    "update_rules.downpour": "Downpour",
    "models.adapter": "FrameworkAdapter, ModelAdapter",
    "models.framework": "Framework",
    "models.losses": "Output",
    "models.layout": "FlatWeights, Layout, WeightSpec",
    "training.history": "Metrics",
    "comm.transport": "Received, Transport, receive, wait_until",
    "comm.codec": "decode, encode",
    "files": "atomic_write",
    "vectors": "aligned_bytes",
}


class FormerNames(Loader):
    """Finder and loader of modules by former names, which comes after all others."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, former = name.partition(".")
        if package != _PACKAGE:
            return None
        if former in MOVED:
            raise ImportError(f"`{name}` has moved: import {MOVED[former]} from `{_PACKAGE}.extend`.", name=name)
        if former in KEPT or any(known.startswith(f"{former}.") for known in (*KEPT, *MOVED)):
            return ModuleSpec(name, cls(), is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        former = module.__name__.partition(".")[2]
        if former in KEPT:
            sys.modules[module.__name__] = importlib.import_module(f"{_PACKAGE}.{KEPT[former]}")
