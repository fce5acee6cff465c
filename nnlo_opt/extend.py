"""Base classes, protocols and helpers for custom search algorithms, pruners, update rules, models and exporters.

Importing this module imports neither MPI nor a framework. `nnlo_opt.testing` has test suites for most of them.
"""

from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.vectors import aligned_bytes
from nnlo_opt.core.comm.codec import decode, encode
from nnlo_opt.core.comm.transport import Received, Transport, receive, wait_until
from nnlo_opt.core.data.source import DataSource
from nnlo_opt.core.models.adapter import FrameworkAdapter, ModelAdapter
from nnlo_opt.core.models.layout import FlatWeights, Layout, WeightSpec
from nnlo_opt.core.search.base import History, SearchAlgorithm, Suggestion
from nnlo_opt.core.search.curves import Curve, Reports
from nnlo_opt.core.search.pruning import Decision, Pruner, Verdict
from nnlo_opt.core.search.random import first_new, unseen_point
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial, TrialState
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.rule import Answer, GroupHalf, MasterHalf, UpdateRule, WorkerHalf
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.framework import Framework
from nnlo_opt.engine.models.losses import Output
from nnlo_opt.tools.export.exporter import Exporter, epochs_of, plain_value, results_of, trials_of

__all__ = [
    "Answer",
    "Curve",
    "DataSource",
    "Decision",
    "Downpour",
    "Event",
    "Exporter",
    "FlatWeights",
    "Framework",
    "FrameworkAdapter",
    "GroupHalf",
    "History",
    "Layout",
    "Ledger",
    "MasterHalf",
    "Metrics",
    "ModelAdapter",
    "Output",
    "Pruner",
    "Received",
    "Reports",
    "SafePath",
    "SearchAlgorithm",
    "Suggestion",
    "Transport",
    "Trial",
    "TrialState",
    "UpdateRule",
    "Verdict",
    "WeightSpec",
    "WorkerHalf",
    "aligned_bytes",
    "atomic_write",
    "decode",
    "encode",
    "epochs_of",
    "first_new",
    "losses",
    "plain_value",
    "receive",
    "results_of",
    "trials_of",
    "unseen_point",
    "wait_until",
]
