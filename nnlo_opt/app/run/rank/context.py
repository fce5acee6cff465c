"""Resources of a process in a run: output, signals, watchdog, share of the node."""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.run.afterwards.mirrors import NO_MIRRORS, Mirrors
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.errors import EXIT_OK
from nnlo_opt.core.base.logs import log_path
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.comm.topology import Topology, rank_label
from nnlo_opt.core.trials.deaths import Death, leave_note
from nnlo_opt.engine.runtime.devices import NodeShare, Resources, cores, own_gpu_ids, share_node
from nnlo_opt.engine.runtime.environment import ulfm_is_on
from nnlo_opt.engine.runtime.handles import HANDLE_BYTES
from nnlo_opt.engine.runtime.log import RankOutput
from nnlo_opt.engine.runtime.peers import Peer
from nnlo_opt.engine.runtime.preemption import Preemption
from nnlo_opt.engine.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import World
    from nnlo_opt.engine.comm.rank_group import RankGroup
    from nnlo_opt.engine.runtime.monitor import Monitor

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FirstNumbers:
    """Numbers of the first rank and the first team of this job among those of all jobs that share the run."""

    rank: int = 0
    team: int = 0

    def set(self, rank: int, team: int) -> None:
        """Replace both; notes of deaths have them from now on."""
        self.rank, self.team = rank, team


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """Output, signals, watchdog and share of the node of one process.

    The defaults are for a user's script, whose process a run must not change.
    """

    #: log of the rank; None: the process keeps its own output
    output: RankOutput | None = None
    timeline: Timeline = NO_TIMELINE
    preemption: Preemption = field(default_factory=Preemption)
    #: None: a hung process is not ended
    watchdog: Watchdog | None = None
    #: False: ranks do not report slow work
    tells_work: bool = True
    #: threads, cores and GPU of this rank; one thread until `settled`
    share: NodeShare = NodeShare()  # noqa: RUF009  (frozen)
    #: file for the exit code of all ranks; None without a launcher
    exit_code_file: str | None = None
    #: for `--mirror`
    mirrors: Mirrors = NO_MIRRORS
    #: in notes of deaths
    first: FirstNumbers = field(default_factory=FirstNumbers)
    #: measures the load of this rank; None: not measured
    monitor: "Monitor | None" = None

    def settled(self, world: "World | RankGroup", topology: Topology, options: Options) -> "ProcessContext":
        """Return the context with this rank's share of its node; call it before importing a framework.

        Collective: every rank of `world`.
        """
        share = _share(world, topology, options)
        share.take()
        logger.info("this rank has %s", share.text())
        team = topology.teams[0] if world.size == 1 else topology.team_of_rank(world.rank)
        self.timeline.name(rank_label(world.rank, team, coordinates=world.rank == 0))
        if self.watchdog is not None:
            _watch_node(self.watchdog, world)
        if not options.monitor:
            return replace(self, share=share)
        from nnlo_opt.engine.runtime.monitor import make_monitor

        return replace(self, share=share, monitor=make_monitor(SystemClock(), share.gpu))

    def start_watching(self) -> None:
        """Start the watchdog of a rank other than 0, before a run is open. Call it from the main thread."""
        if self.watchdog is not None and self.watchdog.world_rank:
            self.watchdog.start()

    def hand_in(self, exit_code: int) -> int:
        """On rank 0, pass the exit code to the launcher, if any; return the code with which all ranks exit."""
        if self.exit_code_file is not None:
            with suppress(OSError):
                SafePath.of(Path(self.exit_code_file)).write_bytes(b"%d" % exit_code)
                return EXIT_OK
        return exit_code

    def say_at_the_end(self, text: Callable[[], str]) -> None:
        """Write `text` to the terminal after SIGTERM, unless a launcher does it."""
        output, watchdog = self.output, self.watchdog
        if output is not None and watchdog is not None and self.exit_code_file is None:
            watchdog.tell_of_sigterm(lambda rank_died: output.tell_at_the_end(text(), rank_died=rank_died))

    def open(self, run: Path, topology: Topology, first_rank: int = 0, first_team: int = 0, job: str = "") -> None:
        """From now on write log, timeline and notes of deaths to the run directory. Call it from the main thread.

        `first_rank`, `first_team` and `job`: as in `OpenRun`.
        """
        if self.output is not None:
            self.output.open_log(run, first_rank)
        self.timeline.open(run, first_rank, job)
        self.first.set(first_rank, first_team)
        if self.watchdog is not None:
            _begin_watch(self.watchdog, topology, run, self.first, tells_work=self.tells_work)


def _share(world: "World | RankGroup", topology: Topology, options: Options) -> NodeShare:
    # If the update rule is searched, it is not known yet: then masters count as ranks that do not train.
    is_objective = options.names_objective  # every rank of a team calls it
    ranks_of = [team.world_ranks if is_objective else team.trainer_ranks for team in topology.teams]
    trainers = {rank for ranks in ranks_of for rank in ranks}
    masters = {rank for team in topology.teams for rank in (team.master_rank, *team.sub_master_ranks)}
    if world.size == 1:
        trainers = masters = {0}
    ids = own_gpu_ids() if world.rank in trainers | masters else ()
    packed = world.on_node(Resources.of(cores(), ids).pack())
    resources = {rank: Resources.unpack(own) for rank, own in packed.items()}
    return share_node(world.rank, resources, trainers, masters, options.gpus)


def _watch_node(watchdog: Watchdog, world: "World | RankGroup") -> None:
    """Make the watchdog watch the other ranks of the node. Collective: every rank of `world`."""
    handle = watchdog.heart.handle if watchdog.heart is not None else bytes(HANDLE_BYTES)
    handles = world.on_node(handle)
    peers = (Peer.of(rank, of_rank) for rank, of_rank in handles.items() if rank != world.rank)
    watchdog.watch([peer for peer in peers if peer is not None])


def _begin_watch(watchdog: Watchdog, topology: Topology, run: Path, first: FirstNumbers, *, tells_work: bool) -> None:
    """Start the watchdog, which writes notes of deaths to the run directory; `tells_work`: also reports slow work."""

    def saw_death(world_rank: int, how: str) -> None:
        if ulfm_is_on() and world_rank:
            return  # the coordinator survives, and records the loss
        team = topology.team_of_rank(world_rank)
        index = None if team is None else first.team + team.index
        leave_note(run, Death(world_rank=first.rank + world_rank, team=index, host=socket.gethostname(), how=how))

    is_first = watchdog.world_rank == topology.teams[0].first_trainer_rank  # only one rank, because all work alike
    watchdog.report(saw_death, log_path(run, first.rank + watchdog.world_rank), tells_work=tells_work and is_first)
    watchdog.start()
