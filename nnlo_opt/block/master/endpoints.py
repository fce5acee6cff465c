"""Where the workers of a master stand: each at an end of its transport, or a group of them behind a sub-master."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Group, Team, count_workers
from nnlo_opt.comm.transport import Transport
from nnlo_opt.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class WorkerEndpoints:
    """Of one team, as long as it stands as it does.

    Workers 1, 2, … stand side by side from end 1 on. In allreduce the last worker is the master's rank itself (end 0),
    unless it is the only one, which has an end of its own. With sub-masters each of these is one worker.
    """

    block: Transport
    #: ranks of a worker; the first of each is the one that we know
    ranks_per_worker: int = 1
    #: the groups whose sub-masters stand at the ends 1, 2, … in place of workers; empty without sub-masters
    groups: tuple[Group, ...] = ()

    @classmethod
    def of(cls, block: Transport, team: Team) -> "WorkerEndpoints":
        """Return those of the workers of `team` on its transport `block`."""
        return cls(block, team.ranks_per_worker, team.groups)

    def n_workers(self, options: TrainingOptions) -> int:
        """How many there are for an assignment."""
        # A team in one process is a master and workers, each with an end, whatever the rule.
        together = options.rule.averages_every_batch and self.block.n_processes > 1
        return count_workers(self.block.size, every_rank=together, ranks_per_worker=self._ends_per_worker)

    def send(self, worker: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        """Send to `worker`."""
        end = 1 + (worker - 1) * self._ends_per_worker
        self.block.send(end % self.block.size, message, payload)

    def worker_at(self, end: int) -> int:
        """Who stands there."""
        return 1 + (end - 1) // self._ends_per_worker if end else self.block.size

    def led_by(self, worker: int) -> range:
        """The workers behind one of ours, by their numbers in the team: those of a sub-master, else itself."""
        return self.groups[worker - 1].workers if self.groups else range(worker, worker + 1)

    def all_led_by(self, workers: Sequence[int]) -> list[int]:
        """The workers behind several of ours."""
        return [number for worker in workers for number in self.led_by(worker)]

    @property
    def _ends_per_worker(self) -> int:
        return 1 if self.groups else self.ranks_per_worker
