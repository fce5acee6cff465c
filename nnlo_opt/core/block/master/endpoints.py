"""A master's endpoints of its workers: one end of its transport per worker, or per sub-master and its group."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Group, Team, count_workers
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.training.options import TrainingOptions


@dataclass(frozen=True, slots=True)
class WorkerEndpoints:
    """Endpoints of a team's workers; replaced when the team regroups.

    Workers 1, 2, … have consecutive ends from 1 on. In allreduce the last worker is the master's own rank (end 0),
    unless it is the only one, which has a separate end. Each sub-master is one worker here.
    """

    block: Transport
    #: ranks per worker; the master only knows the first
    ranks_per_worker: int = 1
    #: groups; their sub-masters have the ends 1, 2, … in place of workers; empty without sub-masters
    groups: tuple[Group, ...] = ()

    @classmethod
    def of(cls, block: Transport, team: Team) -> "WorkerEndpoints":
        """Return the endpoints of the workers of `team` on its transport `block`."""
        return cls(block, team.ranks_per_worker, team.groups)

    def n_workers(self, options: TrainingOptions) -> int:
        """Return the number of workers for an assignment."""
        # A team in one process is a master and workers with separate ends, whatever the rule.
        together = options.rule.averages_every_batch and self.block.n_processes > 1
        return count_workers(self.block.size, every_rank=together, ranks_per_worker=self._ends_per_worker)

    def send(self, worker: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        """Send to `worker`, which counts from 1."""
        end = 1 + (worker - 1) * self._ends_per_worker
        self.block.send(end % self.block.size, message, payload)

    def worker_at(self, end: int) -> int:
        """Return the worker at an end."""
        return 1 + (end - 1) // self._ends_per_worker if end else self.block.size

    def led_by(self, worker: int) -> range:
        """Return the numbers in the team of the workers that `worker` stands for: a sub-master's group, or itself."""
        return self.groups[worker - 1].workers if self.groups else range(worker, worker + 1)

    def all_led_by(self, workers: Sequence[int]) -> list[int]:
        """Return the numbers in the team of the workers that several stand for."""
        return [number for worker in workers for number in self.led_by(worker)]

    @property
    def _ends_per_worker(self) -> int:
        return 1 if self.groups else self.ranks_per_worker
