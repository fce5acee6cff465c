"""Checkpoints of one assignment at its master.

Writing takes two steps. `begin` creates the folder when the master sends the fence of an epoch, so that each worker can
add the memory of its update rule. `save` completes the checkpoint once the epoch has ended. The file format is defined
in `core.trials.checkpoint`.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.block.master.central_weights import CentralWeights
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.state import FoldPlan, MasterState
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.training.history import FoldHistory
from nnlo_opt.core.trials import checkpoint, manifest
from nnlo_opt.core.trials.checkpoint import Checkpoint
from nnlo_opt.core.update_rules.staleness import StalenessStatistics

logger = logging.getLogger(__name__)


class Checkpoints:
    """Writes the checkpoints of one assignment and supplies the positions from which workers resume.

    Args:
        directory: folder of this fold's checkpoints.
        resumed: checkpoint from which the assignment resumes, or None for a fresh start.
        writes: if False, no checkpoint is written.
    """

    def __init__(self, directory: SafePath, resumed: Checkpoint | None, *, writes: bool) -> None:
        self.directory = directory
        self._writes = writes
        #: checkpoint from which the assignment resumes; None for a fresh start, or once the workers have resumed
        self.resumed = resumed
        #: first pass of workers that start within a training; None once they have started
        self._next_pass: int | None = None
        #: worker -> position handed in at the last fence
        self._positions: dict[int, dict[str, Any]] = {}
        #: the folder of the checkpoint that workers write to; None if none is due
        self._writing: SafePath | None = None
        #: name -> fingerprint of the files that workers have written to it
        self._written: dict[str, Any] = {}

    # ------------------------------------------------------------ writing

    def begin(self, epoch: int) -> None:
        """Create the folder to which workers write their state at the fence of `epoch`.

        If it cannot be created (disk full, no permission), this is logged, and training continues without a checkpoint.
        """
        if self._writes and self._writing is None:
            try:
                self._writing = manifest.begin(self.directory, epoch)
            except OSError as error:
                logger.warning("no checkpoint of epoch %d: %s", epoch, error)

    @property
    def begun(self) -> str:
        """Folder that workers write to; "" if no checkpoint is due."""
        return "" if self._writing is None else os.path.abspath(str(self._writing))

    def hold(self, worker: int, reached: msg.FenceReached) -> None:
        """Keep the positions and files that `worker`, or the workers of its group, have handed in."""
        self._written.update(reached.files)
        for number, own in reached.by_worker(worker).items():
            self._positions[number] = own.position
            self._written.update(own.files)

    def save(self, state: MasterState, weights: CentralWeights, train_s: float, n_samples_inside: int = 0) -> bool:
        """Complete the checkpoint that `begin` started.

        Args:
            train_s: training time of the fold so far, in seconds.
            n_samples_inside: samples of the current epoch already trained, if saved in the middle of an epoch.

        Returns:
            True if a checkpoint was written.
        """
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
        master: dict[str, Any] = {"n_samples": state.n_samples, "version": state.version, "train_s": train_s}
        master |= {"history": state.history.to_json(), "epoch_under_way": state.history.epoch_under_way()}
        master |= {"staleness": state.staleness.to_json(), "rule": of_rule, "rate_factor": weights.rate_factor}
        if state.is_stopped:
            master["is_stopped"] = True
        return Checkpoint(
            epoch=state.epoch,
            n_samples_inside=n_samples_inside,
            arrays=arrays,
            master=master,
            workers=self._positions,
        )

    def abandon(self) -> None:
        """Remove a checkpoint that was begun and will not be written."""
        manifest.abandon(self._writing)
        self._writing, self._written = None, {}

    # ------------------------------------------------------------ resuming

    def resumed_by(self, workers: Sequence[int], ends: WorkerEndpoints) -> Checkpoint | None:
        """Return the checkpoint to resume from if the same `workers` wrote it, else None."""
        resumed = self.resumed
        return resumed if resumed is not None and made_by_same_workers(resumed, workers, ends) else None

    def restored_by(self, workers: Sequence[int], ends: WorkerEndpoints, *, same_optimizer: bool) -> str:
        """Return the checkpoint from which `workers` restore the state of their update rule; "" if there is none.

        Args:
            same_optimizer: the optimizers of all workers have the same state, so that other workers can have it, too.
        """
        resumed = self.resumed if same_optimizer else self.resumed_by(workers, ends)
        return "" if resumed is None else str(resumed.place)

    def positions(self, workers: Iterable[int], *, same_workers: bool) -> dict[int, dict[str, Any]] | None:
        """Return the data position (pass and offset) from which each worker resumes; None if workers keep theirs."""
        resumed = self.resumed
        if resumed is not None and same_workers:
            return {number: dict(resumed.workers[number]) for number in workers}
        # With another number of workers shards differ, so each starts a new pass.
        next_pass = self._next_pass if resumed is None else _pass_after(resumed.workers, resumed.epoch)
        return None if next_pass is None else {number: {"pass": next_pass, "offset": 0} for number in workers}

    def forget_positions(self) -> None:
        """Forget the positions once they have been sent to the workers."""
        self.resumed = self._next_pass = None

    def regroup(self, epoch: int | None) -> None:
        """Let new workers continue, with passes not yet used.

        Args:
            epoch: number of epochs done; None before anything is trained.
        """
        self.abandon()
        if epoch is not None:
            self.resumed, self._next_pass = None, _pass_after(self._positions, epoch)
        self._positions = {}


def state_from(plan: FoldPlan, resumed: Checkpoint) -> MasterState:
    """Return the decisions of an assignment at the fence of its checkpoint."""
    master = resumed.master
    state = MasterState(
        plan,
        FoldHistory.from_json(master["history"]),
        StalenessStatistics.from_json(master["staleness"]),
        n_samples=master["n_samples"],
        version=master["version"],
        is_stopped=bool(master.get("is_stopped", False)),
    )
    if resumed.n_samples_inside:
        state.resume_epoch(resumed.n_samples_inside, master["epoch_under_way"])
    return state


def made_by_same_workers(resumed: Checkpoint, workers: Sequence[int], ends: WorkerEndpoints) -> bool:
    """Return True if `resumed` was written by these workers with the same number of ranks each, in any groups."""
    n_followers = {len(position.get("followers", ())) for position in resumed.workers.values()}
    return set(resumed.workers) == set(ends.all_led_by(workers)) and n_followers <= {ends.ranks_per_worker - 1}


def remembers_all(resumed: Checkpoint, workers: Sequence[int], ends: WorkerEndpoints) -> bool:
    """Return True if the checkpoint has the update rule's memory of every worker and sub-master."""
    of_groups = {(group.workers[0], group.workers[-1]) for group in ends.groups}
    return set(ends.all_led_by(workers)) <= resumed.remembering and of_groups <= resumed.groups_remembering


def _pass_after(positions: Mapping[int, Mapping[str, Any]], epoch: int) -> int:
    """Return a pass that no worker at these `positions` has begun; without positions, that after `epoch` epochs."""
    return 1 + max((int(position["pass"]) for position in positions.values()), default=epoch)
