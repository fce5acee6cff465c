"""Transport from the coordinator to the ranks of all jobs, through their files.

Ranks are numbered on through all jobs that ever joined; see `JoinedJob`. In the files of a job they have the numbers
of its own `mpirun`. So numbers in messages are translated here, in both directions.
"""

import logging
from collections import deque

import numpy as np

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.codec import to_json
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.jobs.lead import Lead, Report
from nnlo_opt.core.jobs.lines import Ordered

logger = logging.getLogger(__name__)


class Star(Transport):
    """All ranks, as the coordinator of a term sees them; the coordinator is none of them.

    Weights do not travel between jobs, so there are no payloads. A dead rank is reported by the rest of its team, and a
    dead job by `Lead`, so no end is ever `lost`.

    Args:
        lead: the term; it has begun.
    """

    def __init__(self, lead: Lead) -> None:
        self._lead = lead
        self._arrived: deque[Received] = deque()
        #: job -> orders that are not in its file yet
        self._orders: dict[int, list[Ordered]] = {}
        self.rank = -1
        self.size = self.n_processes = lead.roster.n_ranks

    def deliver(self, reports: list[Report]) -> None:
        """Take in what `Lead.step` has returned, to be polled."""
        roster = self._lead.roster
        self.size = self.n_processes = roster.n_ranks
        for report in reports:
            ranks = roster.jobs[report.job].ranks
            if report.rank < len(ranks):
                message = _renumbered(report.message, ranks.start)
                self._arrived.append(Received(ranks.start + report.rank, message, None))
            else:
                logger.warning("ignored a message of job %d: it has no rank %d", report.job, report.rank)

    def poll(self) -> Received | None:
        return self._arrived.popleft() if self._arrived else None

    def send(self, dest: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        """Collect a message until `flush`."""
        job = self._lead.roster.job_of(dest)
        if job is None:
            raise ProtocolError(f"No job has rank {dest}. Received for it: {message}.")
        if payload is not None:
            raise ProtocolError(f"A vector cannot travel to another job. Received: {message}.")
        order = Ordered(rank=dest - job.ranks.start, message=to_json(message))
        self._orders.setdefault(job.number, []).append(order)

    def flush(self, timeout_s: float = 0.0) -> None:
        """Write all collected messages, those to one job at once; call it before `Lead.step`."""
        orders, self._orders = self._orders, {}
        for job, lines in orders.items():
            if job in self._lead.present:
                self._lead.send(job, *lines)
            else:
                # It lets go by itself whatever it works on before it follows this term, and so gets orders.
                logger.debug("dropped %d orders to job %d, which does not follow this term", len(lines), job)


def _renumbered(message: msg.Message, first: int) -> msg.Message:
    """Return a message of a job with the numbers of its ranks counted from `first`."""
    match message:
        case msg.TeamReformed():
            alive, world_ranks = ([first + rank for rank in ranks] for ranks in (message.alive, message.world_ranks))
            return message.replaced(alive=alive, world_ranks=world_ranks)
        case msg.FoldFailed() if message.world_rank >= 0:
            return message.replaced(world_rank=first + message.world_rank)
    return message
