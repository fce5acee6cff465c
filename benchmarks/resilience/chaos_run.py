"""One disturbed run of chaos.py: starts the launcher, strikes what it started, waits for the end.

Every process of a run carries a mark in its environment, so that nothing else is ever struck. A blow counts when its
victims were alive just before it and gone (or stopped) after it, and the journal did not yet say that the run is
complete.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_check as check
import harness as h
import psutil
from chaos_processes import VANISHED, Family, alive, stopped

from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.engine.runtime.environment import SESSION_FOLDER

HERE = Path(__file__).parent
LOOK_S = 0.02
#: how long a killed process may take to be gone, and how long a blow waits for its victim to be there
GONE_S, THERE_S = 10.0, 15.0
#: how long processes may outlive the launcher that ended by itself
LEFT_S = 10.0
#: starts of the launcher in one run; it gives up by its own rule after two starts in a row that add nothing
MAX_LAUNCHES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is run, undisturbed."""

    kind: str
    n_ranks: int
    block_size: int
    n_trials: int
    #: options of the driver besides
    options: tuple[str, ...]
    #: options of the launcher, and variables for an MPI library
    launcher: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    #: seconds for one start and what follows it
    limit_s: float = 90.0

    @property
    def topology(self) -> Topology:
        """Who plays which role."""
        return Topology.plan(self.n_ranks, self.block_size)

    def command(self, run: Path) -> list[str]:
        """The launcher with its job, which begins `run` and goes on with it."""
        launch = "from nnlo_opt.cli.main import tool; tool()"
        driver = [str(h.ROOT / "drivers" / "OptimizationDriver.py"), "--num-iterations", str(self.n_trials)]
        driver += [
            "--block-size",
            str(self.block_size),
            "--hyper-opt",
            "random",
            "--checkpoint",
            str(run),
            "--opt-restore",
        ]
        head = [sys.executable, "-c", launch, "launch", "-n", str(self.n_ranks), *self.launcher]
        return [*head, "--", sys.executable, *driver, *self.options]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """What is done to a run, and when."""

    #: worker, master, coordinator, search, reporter, mpirun, daemon, several, job, launcher; pause, freeze
    kind: str
    #: when so many trials are complete; None: while the run recovers from the blow before
    n_complete: int | None
    #: seconds after that
    delay_s: float
    #: chooses among victims
    seed: int


@dataclass(slots=True, kw_only=True)
class Hit:
    """A blow that has hit."""

    kind: str
    unix_s: float
    blocks: list[int]
    recovering: bool


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    hits: list[Hit] = field(default_factory=list)
    #: blows for which the run was over, or their victim was not there
    missed: list[str] = field(default_factory=list)
    complete: bool = False
    hung: bool = False
    #: times the launcher gave up by its rule, and was started again as a person would
    n_gave_up: int = 0
    #: processes that were alive after the launcher's end
    left: list[str] = field(default_factory=list)
    began_unix_s: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    problems: check.Findings = field(default_factory=check.Findings)


class Run:
    """One run in a folder of its own; `close` leaves no process behind."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.folder = folder
        self.outcome = Outcome(began_unix_s=time.time())
        self._family = Family()
        self._journal = folder / "run" / "journal.jsonl"
        self._n_bytes = -1
        self._n_complete = 0
        self._is_complete = False
        #: the journal at each blow
        self._kept: list[bytes] = []
        self._n_launches = 0
        #: seconds until this run is taken to hang; those in which this process was stopped itself do not count
        self._left_s = 0.0
        self._launch()

    # ------------------------------------------------------------ the run

    def disturb(self, blows: list[Blow]) -> Outcome:
        """Strike, wait for the end, and look at what is there."""
        try:
            for blow in blows:
                if not self._await(self._moment(blow)) or not self._strike(blow):
                    self.outcome.missed.append(blow.kind)
            self._await(lambda: False)
        except TimeoutError:
            self.outcome.hung = True
            self._dump()
        finally:
            self._close()
        self._judge()
        return self.outcome

    def _launch(self) -> None:
        self._n_launches += 1
        self._left_s = self.setting.limit_s
        environment = {
            **h.environment(),
            "PYTHONPATH": str(h.ROOT),
            # What hangs is asked for its stacks by SIGABRT.
            "PYTHONFAULTHANDLER": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            SESSION_FOLDER: str(self.folder / f"mpi-{self._n_launches}"),
            **self._family.variables,
            **dict(self.setting.variables),
        }
        with (self.folder / "output.txt").open("ab") as output:
            self._launcher = psutil.Popen(
                self.setting.command(self.folder / "run"),
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await(self, ready: Callable[[], bool]) -> bool:
        """Wait until `ready` (-> True), or the run is over (-> False); TimeoutError for one that hangs."""
        looked_s = time.monotonic()
        while True:
            code = self._launcher.poll()
            over = code is not None
            self._look()
            if over and self._is_complete:
                return False
            if over:
                self.outcome.n_gave_up += code == 1
                if self._n_launches == MAX_LAUNCHES:
                    return False
                self._launch()
            elif not self._is_complete and ready():
                return True
            now_s = time.monotonic()
            self._left_s -= min(now_s - looked_s, 1.0)
            looked_s = now_s
            if self._left_s < 0:
                raise TimeoutError
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """What the journal says by now."""
        with suppress(FileNotFoundError):
            if (n_bytes := self._journal.stat().st_size) != self._n_bytes:
                self._n_bytes = n_bytes
                data = self._journal.read_bytes()
                self._n_complete = data.count(b'"event":"TrialCompleted"')
                # The last whole line: a start may follow a complete run, and ends it again.
                self._is_complete = data.endswith(b"\n") and b'"event":"RunCompleted"' in data.splitlines()[-1]

    def _moment(self, blow: Blow) -> Callable[[], bool]:
        n_complete, hits = blow.n_complete, self.outcome.hits
        since: list[float] = []

        def ready() -> bool:
            if n_complete is None and hits:
                return time.time() >= hits[-1].unix_s + blow.delay_s
            if self._n_complete >= (n_complete or 0) and self._n_bytes > 0 and not since:
                since.append(time.time())
            return bool(since) and time.time() >= since[0] + blow.delay_s

        return ready

    # ------------------------------------------------------------ blows

    def _strike(self, blow: Blow) -> bool:
        """Hit the victims of `blow`; -> whether they were there while the run was under way, and are hit."""
        until_s = time.monotonic() + THERE_S
        while not (victims := self._victims(blow)):
            self._look()
            if self._is_complete or self._launcher.poll() is not None or time.monotonic() > until_s:
                return False
            time.sleep(LOOK_S)
        blocks = sorted({block for ranks in victims.values() for block in self._blocks_of(ranks)})
        self._look()
        if self._is_complete or not all(alive(process) for process in victims):
            return False
        kept = self._journal.read_bytes() if self._journal.exists() else b""
        unix_s = time.time()
        hit = Hit(kind=blow.kind, unix_s=unix_s, blocks=blocks, recovering=blow.n_complete is None)
        if blow.kind in ("pause", "freeze"):
            struck = all(stopped(process) for process in victims)
        else:
            for process in victims:
                with suppress(*VANISHED):
                    process.kill()
            _, left = psutil.wait_procs(victims, timeout=GONE_S)
            struck = not any(alive(process) for process in left)
        if blow.kind == "pause":
            time.sleep(random.Random(blow.seed).uniform(0.1, 1.0))
            for process in victims:
                with suppress(*VANISHED):
                    process.send_signal(signal.SIGCONT)
        self._kept.append(kept)
        self._left_s = self.setting.limit_s
        if struck:
            self.outcome.hits.append(hit)
        return struck

    def _victims(self, blow: Blow) -> dict[psutil.Process, list[int]]:
        """Process -> ranks that end with it; empty where what is to be hit is not there."""
        rng = random.Random(blow.seed)
        if blow.kind == "launcher":
            return {self._launcher: []}
        ranks, helpers, starter = self._family.roles()
        everybody = list(range(self.setting.n_ranks))
        if blow.kind == "mpirun":
            return {starter: everybody} if starter else {}
        if blow.kind in ("search", "reporter", "daemon"):
            return {helpers[blow.kind]: everybody} if blow.kind in helpers else {}
        if len(ranks) < self.setting.n_ranks:
            return {}
        masters = [team.master_rank for team in self.setting.topology.teams]
        workers = [rank for rank in everybody[1:] if rank not in masters]
        match blow.kind:
            case "coordinator":
                chosen = [0]
            case "master":
                chosen = [rng.choice(masters)]
            case "worker":
                chosen = [rng.choice(workers or masters)]
            case "several":
                chosen = rng.sample(everybody, rng.randint(2, 3))
            case "job":
                chosen = everybody
            case _:
                chosen = [rng.choice(everybody)]
        return {process: [rank] for rank, process in ranks.items() if rank in chosen}

    def _blocks_of(self, ranks: list[int]) -> list[int]:
        """Blocks whose trials cannot go on without these ranks: all of them without the coordinator."""
        topology = self.setting.topology
        if 0 in ranks:
            return list(range(1, topology.n_blocks + 1))
        return [team.block for rank in ranks if (team := topology.team_of_rank(rank))]

    # ------------------------------------------------------------ the end

    def _dump(self) -> None:
        """Have what hangs say where; kept in `output.txt`."""
        with suppress(*VANISHED):
            for process, _ in self._family.members():
                with suppress(*VANISHED):
                    process.send_signal(signal.SIGCONT)
                    if any("OptimizationDriver" in word for word in process.cmdline()):
                        process.send_signal(signal.SIGABRT)
        time.sleep(2.0)

    def _close(self) -> None:
        until_s = time.monotonic() + LEFT_S
        while (mine := self._family.members()) and not self.outcome.hung and time.monotonic() < until_s:
            time.sleep(0.1)
        for process, _ in mine:
            with suppress(*VANISHED):
                if not self.outcome.hung:
                    self.outcome.left.append(" ".join(process.cmdline())[-120:])
                process.kill()
        with suppress(psutil.TimeoutExpired):
            self._launcher.wait(GONE_S)

    def _judge(self) -> None:
        outcome = self.outcome
        final = self._journal.read_bytes() if self._journal.exists() else b""
        outcome.events = [json.loads(line) for line in final[: final.rfind(b"\n") + 1].splitlines()]
        outcome.complete = self._is_complete
        outcome.problems.lost += check.changed(self._kept, final)
        ends = [e["time_s"] for e in outcome.events if e["event"] == "RunCompleted"]
        if ends:
            # A blow that came after the end after all has hit nothing.
            end_unix_s = check.unix_0(outcome.events) + ends[0]
            outcome.missed += [hit.kind for hit in outcome.hits if hit.unix_s >= end_unix_s]
            outcome.hits = [hit for hit in outcome.hits if hit.unix_s < end_unix_s]

    def evaluations(self) -> list[dict[str, Any]]:
        """The side record."""
        path = self.folder / "evaluations.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draw_blows(rng: random.Random, setting: Setting, weights: dict[str, float], n_most: int) -> list[Blow]:
    """One blow or more, in the order in which they come."""
    kinds = rng.choices(list(weights), list(weights.values()), k=rng.randint(1, n_most))
    moments = sorted(rng.randrange(setting.n_trials * 2 // 3) for _ in kinds)
    blows = []
    for i, (kind, moment) in enumerate(zip(kinds, moments, strict=True)):
        recovering = i > 0 and rng.random() < 0.4
        # Recovery has phases of milliseconds (in place) and of seconds (a new start): all of them are to be hit.
        delay_s = 10 ** rng.uniform(-2.0, 0.9) if recovering else rng.uniform(0.0, 0.3)
        n_complete = None if recovering else moment
        blows.append(Blow(kind=kind, n_complete=n_complete, delay_s=delay_s, seed=rng.getrandbits(32)))
    return blows


def hits_by_kind(outcomes: list[Outcome]) -> dict[str, int]:
    """How often each kind has hit, and how many came while the run recovered from another."""
    hits = [hit for outcome in outcomes for hit in outcome.hits]
    return {**Counter(hit.kind for hit in hits), "during_recovery": sum(hit.recovering for hit in hits)}
