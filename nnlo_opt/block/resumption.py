"""What a master makes of the checkpoint that an assignment goes on from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnlo_opt.block.fold_plan import FoldPlan
from nnlo_opt.block.master_state import MasterState
from nnlo_opt.comm.topology import Group
from nnlo_opt.training.checkpoint import Checkpoint
from nnlo_opt.training.history import FoldHistory


def state_from(plan: FoldPlan, resumed: Checkpoint) -> MasterState:
    """The decisions of an assignment at the fence that the checkpoint was made at."""
    master = resumed.master
    state = MasterState(
        plan, FoldHistory.from_json(master["history"]), n_samples=master["n_samples"], version=master["version"]
    )
    state.staleness = type(state.staleness).from_json(master["staleness"])
    if resumed.n_samples_inside:
        state.resume_epoch(resumed.n_samples_inside, master["epoch_under_way"])
    return state


def rule_state(resumed: Checkpoint) -> dict[str, Any]:
    """What the update rule at the master remembers."""
    prefix = "rule."
    vectors = {name.removeprefix(prefix): a for name, a in resumed.arrays.items() if name.startswith(prefix)}
    return {**resumed.master["rule"], **vectors}


def are_the_same(resumed: Checkpoint, workers: Sequence[int], ranks_per_worker: int) -> bool:
    """Whether the checkpoint was made by these workers, of as many ranks, in whatever groups."""
    n_followers = {len(position.get("followers", ())) for position in resumed.workers.values()}
    return set(resumed.workers) == set(workers) and n_followers <= {ranks_per_worker - 1}


def remembers_all(resumed: Checkpoint, workers: Sequence[int], groups: Sequence[Group]) -> bool:
    """Whether every worker, and the sub-master of every group, has left what its update rule remembers."""
    of_groups = {(group.workers[0], group.workers[-1]) for group in groups}
    return set(workers) <= resumed.remembering and of_groups <= resumed.groups_remembering


def position_of(resumed: Checkpoint, worker: int, *, same_workers: bool) -> dict[str, Any]:
    """Where `worker` goes on in its data."""
    if same_workers:
        return dict(resumed.workers[worker])
    # Another number of workers: the shards are others too, so each begins a pass not yet made.
    passes = (int(position["pass"]) for position in resumed.workers.values())
    return {"pass": 1 + max(passes, default=resumed.epoch), "offset": 0}


def average_states(states: Sequence[np.ndarray], n_workers: Sequence[int]) -> np.ndarray:
    """The mean of float model states (n_state,), each itself the mean of `n_workers`; float64 (n_state,)."""
    return np.asarray(np.average(np.asarray(states, np.float64), axis=0, weights=n_workers))
