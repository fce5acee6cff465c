"""Plan of a job: roles of ranks and memory of nodes; pure functions."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.comm.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Megabytes of a process of each role, without samples or weights; measured with TensorFlow 2.21."""

    #: rank 0 alone
    coordinator: int = 60
    #: search process and reporter process, both on the node of rank 0
    search: int = 250
    #: a master or sub-master
    master: int = 90
    worker: int = 700


class JobPlan(Frozen):
    """Layout of a search whose ranks fill one node after another."""

    topology: Topology
    ranks_per_node: int
    memory: Memory = Memory()

    @property
    def n_nodes(self) -> int:
        """Number of nodes; the last one may have fewer ranks."""
        return math.ceil(self.topology.world_size / self.ranks_per_node)

    def roles(self) -> list[str]:
        """Return the role of each rank."""
        size = self.topology.world_size
        if size == 1:
            return ["coordinator and worker"]
        roles = ["coordinator"] * size
        for team in self.topology.teams:
            for rank in team.world_ranks:
                roles[rank] = "worker"
            for rank in team.sub_master_ranks:
                roles[rank] = "sub-master"
            roles[team.master_rank] = "master and worker" if team.master_rank in team.trainer_ranks else "master"
        return roles

    def megabytes(self) -> list[int]:
        """Return the memory of each node in megabytes."""
        memory, first = self.memory, self.memory.coordinator + self.memory.search
        of_role = {"coordinator": first, "coordinator and worker": first + memory.worker}
        of_role |= {"master": memory.master, "sub-master": memory.master}
        of_role |= {"master and worker": memory.worker, "worker": memory.worker}
        each = [of_role[role] for role in self.roles()]
        return [sum(each[i : i + self.ranks_per_node]) for i in range(0, len(each), self.ranks_per_node)]

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        topology, counts = self.topology, Counter(self.roles())
        lines = [f"Ranks: {topology.world_size}; " + ", ".join(_counted(n, role) for role, n in counts.items()) + "."]
        for shape, same in groupby(range(1, topology.n_blocks + 1), self._shape):
            blocks = list(same)
            which = f"Block {blocks[0]}" if len(blocks) == 1 else f"Blocks {blocks[0]} to {blocks[-1]}"
            each = "each " if len(blocks) > 1 else ""
            first, last = topology.teams_of(blocks[0])[0], topology.teams_of(blocks[-1])[-1]
            ranks = f"world ranks {first.world_ranks[0]} to {last.world_ranks[-1]}"
            parts = each + _counted(sum(shape), "rank")
            if len(shape) > 1:
                sizes = " + ".join(map(str, shape))
                parts += f" in {len(shape)} sub-blocks of {sizes}, which train folds at the same time"
            lines.append(f"{which}: {parts} ({ranks}).")
        if topology.remark:
            lines.append(topology.remark)
        per_node = self.megabytes()
        most = max(per_node)
        lines.append(
            f"Nodes: {self.n_nodes} of {self.ranks_per_node} ranks; about {most / 1000:.1f} GB on the fullest node, "
            f"{sum(per_node) / 1000:.1f} GB in total. Samples, weights and the computation of the model come on top."
        )
        return lines

    def _shape(self, block: int) -> tuple[int, ...]:
        return tuple(len(team.world_ranks) for team in self.topology.teams_of(block))


def _counted(n: int, role: str) -> str:
    """Return "1 master", "2 masters", "2 masters and workers"."""
    return f"{n} {role}" if n == 1 else f"{n} " + " and ".join(f"{word}s" for word in role.split(" and "))
