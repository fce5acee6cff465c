"""The checkpoints of an assignment at its master: what goes into one, and how an assignment goes on from one.

Their files are those of `trials.checkpoint`. One is begun when a fence is sent, so that the workers can write to it
what their update rule remembers, and written when the epoch has ended.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.block.master.central_weights import CentralWeights
from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.state import FoldPlan, MasterState
from nnlo_opt.comm import messages as msg
from nnlo_opt.training.history import FoldHistory
from nnlo_opt.trials import checkpoint
from nnlo_opt.trials.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


class Checkpoints:
    """Of one assignment."""

    def __init__(self, directory: Path, resumed: Checkpoint | None, *, writes: bool) -> None:
        """They lie in `directory`, and it goes on from the one that was `resumed`. `writes`: others follow."""
        self.directory = directory
        self._writes = writes
        #: where it goes on from; None when it begins afresh, and when the workers have gone on
        self.resumed = resumed
        #: pass over the data that workers begin with which are new in the middle of a training; None once they have
        self._next_pass: int | None = None
        #: worker -> position handed in at the last fence
        self._positions: dict[int, dict[str, Any]] = {}
        #: the folder of the checkpoint that workers write to; None where none is due
        self._writing: Path | None = None
        #: what the workers have written to it: file name -> fingerprint
        self._written: dict[str, Any] = {}

    # ------------------------------------------------------------ making one

    def begin(self, epoch: int) -> None:
        """Let the workers write to that of `epoch`, where that is possible."""
        if self._writes and self._writing is None:
            try:
                self._writing = checkpoint.begin(self.directory, epoch)
            except OSError as error:
                logger.warning("no checkpoint of epoch %d: %s", epoch, error)

    @property
    def begun(self) -> str:
        """The folder that workers write to; "" where none is due."""
        return "" if self._writing is None else str(self._writing.resolve())

    def hold(self, worker: int, reached: msg.FenceReached) -> None:
        """Keep what `worker`, and those behind it, have handed in."""
        self._written.update(reached.files)
        for number, own in reached.by_worker(worker).items():
            self._positions[number] = own.position
            self._written.update(own.files)

    def save(self, state: MasterState, weights: CentralWeights, train_s: float, n_samples_inside: int = 0) -> bool:
        """Write one, `n_samples_inside` the epoch under way; -> whether that was wanted and possible."""
        if not self._writes:
            return False
        writing, written = self._writing, self._written
        self._writing, self._written = None, {}
        try:
            made = self._made(state, weights, train_s, n_samples_inside)
            checkpoint.save(self.directory, made, writing, written)
        except OSError as error:
            logger.warning("no checkpoint of epoch %d: %s", state.epoch, error)
            return False
        return True

    def _made(self, state: MasterState, weights: CentralWeights, train_s: float, n_samples_inside: int) -> Checkpoint:
        arrays, of_rule = weights.to_checkpoint()
        return Checkpoint(
            epoch=state.epoch,
            n_samples_inside=n_samples_inside,
            arrays=arrays,
            master={
                "n_samples": state.n_samples,
                "version": state.version,
                "train_s": train_s,
                "history": state.history.to_json(),
                "epoch_under_way": state.history.epoch_under_way(),
                "staleness": state.staleness.to_json(),
                "rule": of_rule,
                "rate_factor": weights.rate_factor,
            },
            workers=self._positions,
        )

    def abandon(self) -> None:
        """Remove what was begun and will not be written."""
        checkpoint.abandon(self._writing)
        self._writing, self._written = None, {}

    # ------------------------------------------------------------ going on from one

    def resumed_by(self, workers: Sequence[int], ends: WorkerEndpoints) -> Checkpoint | None:
        """The one that is gone on from, where it was made by the same `workers`; None where by others."""
        resumed = self.resumed
        return resumed if resumed is not None and are_the_same(resumed, workers, ends) else None

    def positions(self, workers: Iterable[int], *, same_workers: bool) -> dict[int, dict[str, Any]] | None:
        """Where each of `workers` goes on in its data; None where it is there already."""
        if self.resumed is not None:
            return {number: _position_of(self.resumed, number, same_workers=same_workers) for number in workers}
        if self._next_pass is not None:
            return {number: {"pass": self._next_pass, "offset": 0} for number in workers}
        return None

    def have_gone_on(self) -> None:
        """The workers have been told where they go on."""
        self.resumed = self._next_pass = None

    def regroup(self, epoch: int | None) -> None:
        """Have others go on, in passes not yet made; `epoch`: how many are done, None before anything is trained."""
        self.abandon()
        if epoch is not None:
            passes = [int(position["pass"]) for position in self._positions.values()]
            self.resumed, self._next_pass = None, 1 + max(passes, default=epoch)
        self._positions = {}


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


def are_the_same(resumed: Checkpoint, workers: Sequence[int], ends: WorkerEndpoints) -> bool:
    """Whether the checkpoint was made by these workers, of as many ranks, in whatever groups."""
    n_followers = {len(position.get("followers", ())) for position in resumed.workers.values()}
    return set(resumed.workers) == set(ends.all_led_by(workers)) and n_followers <= {ends.ranks_per_worker - 1}


def remembers_all(resumed: Checkpoint, workers: Sequence[int], ends: WorkerEndpoints) -> bool:
    """Whether every worker, and the sub-master of every group, has left what its update rule remembers."""
    of_groups = {(group.workers[0], group.workers[-1]) for group in ends.groups}
    return set(ends.all_led_by(workers)) <= resumed.remembering and of_groups <= resumed.groups_remembering


def _position_of(resumed: Checkpoint, worker: int, *, same_workers: bool) -> dict[str, Any]:
    if same_workers:
        return dict(resumed.workers[worker])
    # Another number of workers: the shards are others too, so each begins a pass not yet made.
    passes = (int(position["pass"]) for position in resumed.workers.values())
    return {"pass": 1 + max(passes, default=resumed.epoch), "offset": 0}
