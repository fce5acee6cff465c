"""What search algorithms, pruners, update rules, model adapters and transports of one's own are made of.

It imports neither MPI nor a framework. Suites of tests for them are in `nnlo_opt.testing`.
"""

from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.base.vectors import aligned_bytes
from nnlo_opt.core.comm.codec import decode, encode
from nnlo_opt.core.comm.transport import Received, Transport, receive, wait_until
from nnlo_opt.core.models.adapter import FrameworkAdapter, ModelAdapter
from nnlo_opt.core.models.layout import FlatWeights, Layout, WeightSpec
from nnlo_opt.core.search.base import History, SearchAlgorithm, Suggestion
from nnlo_opt.core.search.curves import Curve, Reports
from nnlo_opt.core.search.pruning import Decision, Pruner, Verdict
from nnlo_opt.core.search.random import first_new, unseen_point
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.rule import Answer, GroupHalf, MasterHalf, UpdateRule, WorkerHalf
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.framework import FRAMEWORKS, Framework
from nnlo_opt.engine.models.losses import Output

__all__ = [
    "FRAMEWORKS",
    "Answer",
    "Curve",
    "Decision",
    "Downpour",
    "FlatWeights",
    "Framework",
    "FrameworkAdapter",
    "GroupHalf",
    "History",
    "Layout",
    "MasterHalf",
    "Metrics",
    "ModelAdapter",
    "Output",
    "Pruner",
    "Received",
    "Reports",
    "SearchAlgorithm",
    "Suggestion",
    "Transport",
    "TrialState",
    "UpdateRule",
    "Verdict",
    "WeightSpec",
    "WorkerHalf",
    "aligned_bytes",
    "atomic_write",
    "decode",
    "encode",
    "first_new",
    "losses",
    "receive",
    "unseen_point",
    "wait_until",
]
