"""Objective of `--command`: its script runs as a separate process on every rank of the block.

Block rank 0 reads its script's reports and tells the other ranks, so that all make the same collective calls of the
trial. All ranks keep reading the output of their scripts, because a full pipe would block a script.
"""

import hashlib
import logging
import math
import os
import shutil
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, LostAttemptError, TrialError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.run_messages import SharedFilesChanged
from nnlo_opt.core.comm.transport import wait_until
from nnlo_opt.core.space.values import thawed
from nnlo_opt.core.trials.identity import COMMAND
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.objective.named_files import named_files
from nnlo_opt.engine.objective.output import GO_ON, STOP, Output, Report
from nnlo_opt.engine.objective.rank import RunningTrial
from nnlo_opt.engine.objective.script import Script
from nnlo_opt.engine.objective.template import CHECKPOINT, RANKS, SAVE, Template
from nnlo_opt.engine.objective.torch_group import LOOPBACK, Place
from nnlo_opt.engine.objective.working_folder import WorkingFolder
from nnlo_opt.engine.runtime.devices import NO_GPU, VISIBLE, are_own, find_gpus, own_gpu_ids
from nnlo_opt.engine.runtime.rank_variables import without_ranks

logger = logging.getLogger(__name__)

#: seconds to wait for output of a script per check
_LOOK_S = 0.02
#: seconds until SIGTERM for a script that was told to stop by `report`; then until SIGKILL
HEARD_S, TERM_S = 1.0, 3.0
#: what block rank 0 tells the others
_REPORT, _STOP, _END, _AGAIN = "report", "stop", "end", "again"
#: error texts of a script whose port is in use
_TAKEN = ("EADDRINUSE", "ddress already in use")
#: last lines of the output shown as reason of a failure, and characters of each
_N_LINES, _MOST_SHOWN = 3, 300
#: usual causes of signals
_CAUSES = {"SIGKILL": ", by hand or for lack of memory", "SIGBUS": ", for lack of shared memory or of disk space"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """Command that evaluates a trial; its methods are called on every rank of a block."""

    template: Template
    #: names of the objectives, and patterns, as for `Output`
    names: tuple[str, ...] = ()
    patterns: tuple[str | None, str | None] = (None, None)
    #: kind of `ScriptFolders`, None for that of the run; and entries private to each trial
    folder: str | None = None
    own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.output()

    def output(self) -> Output:
        """Return a parser for the script's output."""
        return Output(self.names, self.patterns)

    def plain(self, trial: RunningTrial) -> Any:
        """Run a trial without checkpoints; return its result on block rank 0, None if it should stop.

        Raises:
            TrialError: the script failed, or printed no result.
        """
        return self._run(trial, {})

    def saving(self, trial: RunningTrial) -> Any:
        """Like `plain`, with checkpoints: resumes from the last save."""
        save = SafePath(trial.directory) / f"save-{_rank_of(trial)}"
        save.remove()  # a crash may have left it
        save.mkdir()
        try:
            return self._run(trial, {SAVE: save, CHECKPOINT: trial.checkpoint.folder or ""})
        finally:
            save.remove()

    def _run(self, trial: RunningTrial, saves: dict[str, Any]) -> Any:
        folder = WorkingFolder(trial.directory, trial.scripts)
        try:
            result = _Call(self, trial, folder, saves).run()
            trial.meet("end")  # until then scripts of other ranks use the folder
            return result
        finally:
            if not _rank_of(trial) and (changed := folder.close()):
                trial.tell(SharedFilesChanged(trial=trial.number, names=changed))

    def definition(self) -> TrialDefinition:
        """Return this command as an objective; ConfigurationError if its program is missing."""
        words = self.template.words
        program = shutil.which(words[0])
        if program is None and "{" not in words[0]:
            raise ConfigurationError(
                f"`--command` must begin with a program that can be started. Received: {words[0]!r}, which is neither "
                "in PATH nor an executable file. Check its name."
            )
        files = named_files(words)
        given = {"--report-pattern": self.patterns[0], "--result-pattern": self.patterns[1]}
        parts = {COMMAND: self.template.text} | {name: text for name, text in given.items() if text}
        same = parts | {COMMAND: self.template.fingerprint_text}
        source = Path(next(iter(files.code | files.others), program or words[0]))
        saves = {SAVE, CHECKPOINT} & self.template.names
        return TrialDefinition(
            name=source.stem,
            kind="objective",
            source=source,
            functions={"objective": self.saving if saves else self.plain},
            # As in older versions, whose runs have nothing else.
            fingerprint=hashlib.sha256(repr(same | files.former).encode()).hexdigest(),
            parts=parts | files.code,
            notes=files.others,
        )


class _Call:
    """Script of one trial on one rank of the block, started when constructed; `saves`: placeholders of its saves."""

    def __init__(self, command: Command, trial: RunningTrial, folder: WorkingFolder, saves: dict[str, Any]) -> None:
        self._command, self._trial, self._rank, self._folder = command, trial, _rank_of(trial), folder
        self._values = {"trial": trial.number, "folder": folder.path, **saves}
        self._output = command.output()
        #: reports of the script that have not been passed on
        self._reports: deque[Report] = deque()
        #: calls of `nnlo_opt.report` waiting for an answer, as (epoch, connection)
        self._waiting: list[tuple[Any, socket.socket]] = []
        #: the last epoch passed on (-inf before the first, inf after all), and the answer
        self._epoch, self._goes_on = -math.inf, True
        self._has_restarted = False
        self._script = self._start()

    def _start(self) -> Script:
        """Start the script. Collective: every rank of the block."""
        gpus_here, ids = find_gpus(os.environ).names, own_gpu_ids()
        own = [socket.gethostname(), *map(os.environ.get, VISIBLE), gpus_here, ids]
        *places, port = self._trial.meet("start", own, self._prepared)
        hosts = [place[0] for place in places]
        address = LOOPBACK if len({*hosts}) == 1 else hosts[0]
        point = {name: thawed(value) for name, value in self._trial.parameters.items()}
        words = self._command.template.filled(point, self._values | {RANKS: len(hosts)})
        place = Place.of(self._rank, hosts)
        if RANKS in self._command.template.names:  # the script of block rank 0 starts the processes of all ranks
            place, words = Place(), ["true"] if self._rank else words
        environ = without_ranks(os.environ)
        node = [there for there in places if there[0] == own[0]]
        if are_own(*zip(*(there[-2:] for there in node), strict=True)):
            place = place.alone()
        else:  # as under `torchrun`, a process sees the GPUs of all ranks on its node
            for number, variable in enumerate(VISIBLE, 1):
                gpus = [there[number] for there in node if there[number] not in (None, NO_GPU)]
                environ |= {variable: ",".join(dict.fromkeys(gpus))} if gpus else {}
        # The script may be `torchrun`, which reads its port there.
        environ |= place.variables(address, port) | {"PET_MASTER_PORT": str(port), "PYTHONUNBUFFERED": "1"}
        log = SafePath(self._trial.directory) / f"output-{self._rank}.log"
        words = self._folder.placed(words, self._command.template.words)
        return Script(words, self._folder.environ(environ), log, self._take, self._folder.cwd)

    def _prepared(self, places: list[Json]) -> list[Json]:
        """Create the trial's folder before any script starts; return the places of all ranks, with a port."""
        self._folder.open()
        return [*places, _free_port()]

    # ------------------------------------------------------------ what the script says

    def _take(self, line: str, connection: socket.socket | None) -> None:
        had_remark = self._output.remark
        report = self._output.take(line)
        if self._output.remark != had_remark:
            logger.warning("trial %d: %s", self._trial.number, self._output.remark)
        if connection is not None:
            self._waiting.append((report and report.epoch, connection))
            self._answer()
        # Several processes of one script may report the same.
        last = max((r.epoch for r in self._reports if isinstance(r.epoch, int)), default=self._epoch)
        if report is not None and not (isinstance(report.epoch, int) and report.epoch <= last):
            self._reports.append(report)

    def _answer(self) -> bool:
        """Answer reports that were passed on or came late; return True if there were any."""
        heard = [end for epoch, end in self._waiting if not isinstance(epoch, int) or epoch <= self._epoch]
        self._waiting = [(epoch, end) for epoch, end in self._waiting if end not in heard]
        for connection in heard:
            with connection, suppress(OSError):
                connection.sendall(GO_ON if self._goes_on else STOP)
        return bool(heard)

    # ------------------------------------------------------------ the course of the trial

    def run(self) -> Any:
        """Run the trial; return its result, None if it should stop. Collective: every rank of the block."""
        try:
            while self._goes_on:
                next_, epoch, saves = self._trial.meet("next", None, lambda _: self._awaited(), self._look)
                if next_ == _REPORT:
                    self._report(epoch, saves)
                elif next_ == _AGAIN:
                    self._close()
                    self._has_restarted, self._script = True, self._start()
                elif next_ == _STOP:
                    self._goes_on = False
                    self._stop(0.0)
                else:
                    return self._result()
            return None
        except TrialError:
            self._close()
            if self._script.killed_by is not None:  # perhaps the cause of a failure on another rank
                raise self._failure() from None
            raise
        finally:
            self._close()

    def _awaited(self) -> Json:
        """On block rank 0: wait for and return what every rank does next."""
        self._wait(lambda: bool(self._reports) or self._trial.is_stopped())
        if self._reports:
            return [_REPORT, self._reports[0].epoch, self._reports[0].saves]
        if self._script.code is None:
            return [_STOP, 0, False]
        return [_AGAIN if self._must_restart() else _END, 0, False]

    def _report(self, epoch: Any, saves: bool) -> None:
        report = Report(epoch) if self._rank else self._reports.popleft()
        if saves:
            self._trial.checkpoint.save(epoch, self._hand_over)
        self._goes_on = self._trial.report(epoch, report.value, **report.figures)
        self._epoch = epoch
        has_heard = self._answer()
        if not self._goes_on:
            self._stop(HEARD_S * has_heard)

    def _stop(self, heard_s: float) -> None:
        """End the script, which gets `heard_s` seconds to exit by itself before SIGTERM."""
        for seconds in (heard_s, TERM_S):
            until_s = time.monotonic() + seconds
            while self._script.code is None and time.monotonic() < until_s:
                self._script.look(_LOOK_S)
            self._script.stop()

    def _hand_over(self, folder: Path) -> None:
        """Move the script's checkpoint to `folder`."""
        if (save := self._values.get(SAVE)) is None:
            raise TrialError('a report has "checkpoint": true, so the command must have `{save}`, the folder to fill')
        for path in save.iterdir():
            path.replace(SafePath(folder) / path.name)

    def _result(self) -> dict[str, Any] | None:
        self._epoch = math.inf
        self._answer()
        self._wait(lambda: False)
        if self._rank == 0 and self._output.result is None:
            raise TrialError(
                'the command must print its value as a line like {"value": 0.21}, or in the form of '
                f"`--result-pattern`; it printed none{self._end_of_output()}"
            )
        for option in sorted(self._output.unfitted):
            logger.warning("trial %d: `%s` matches no line of the output", self._trial.number, option)
        return self._output.result

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done()` is True or the script has ended."""
        wait_for = wait_until if self._trial.comm is None else self._trial.comm.wait_for
        wait_for(lambda: done() or self._look())

    def _look(self) -> bool:
        """Read the script's output briefly; return True if it has ended, TrialError if it has failed."""
        code = self._script.code
        while self._script.look(_LOOK_S if code is None else 0.0) and code is not None:
            pass
        if self._trial.comm is not None:
            self._trial.comm.Iprobe()  # lets MPI notice the death of mpirun
        if code and not self._must_restart():
            raise self._failure()
        return code is not None

    def _failure(self) -> TrialError:
        """Return the error of a script that ended too early."""
        killed_by, code = self._script.killed_by, self._script.code
        how = f"with code {code}"
        if killed_by is not None or code == 128 + signal.SIGKILL:
            name = signal.SIGKILL.name if killed_by is None else killed_by.name
            how = f"by {name} on {socket.gethostname()}{_CAUSES.get(name, '')}"
        error = TrialError if killed_by is None else LostAttemptError
        return error(f"the command ended {how}{self._end_of_output()}")

    def _end_of_output(self) -> str:
        """Return the last lines of the output, for the reason of a failure."""
        said = [line.strip()[-_MOST_SHOWN:] for line in self._script.tail.splitlines() if line.strip()]
        if not said:
            return ", without any output"
        log = "/".join((*self._trial.directory.parts[-2:], f"output-{self._rank}.log"))
        return f"; its output ends: {' / '.join(said[-_N_LINES:])}; all of it in `{log}`"

    def _must_restart(self) -> bool:
        """Return True if the script failed for the first time because its port was in use."""
        is_new = bool(self._script.code) and not (self._rank or self._has_restarted) and self._epoch == -math.inf
        return is_new and any(words in self._script.tail for words in _TAKEN)

    def _close(self) -> None:
        """Kill all processes of the script."""
        for _, connection in self._waiting:
            connection.close()
        self._waiting.clear()
        self._script.close()


def _rank_of(trial: RunningTrial) -> int:
    return 0 if trial.comm is None else int(trial.comm.Get_rank())


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
