"""Objective of a command: its script runs on every rank of the block, as a process of its own.

Block rank 0 reads what its script reports, and tells the other ranks, so that all make the calls of the trial that
every rank has to make. All ranks read the output of their scripts all the time, as a full pipe would stop a script.
"""

import hashlib
import math
import os
import shutil
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.files import make_directory
from nnlo_opt.models.builders import ModelDefinition
from nnlo_opt.objective.environment import torchrun_environment, without_launcher
from nnlo_opt.objective.output import Output, Patterns, Report
from nnlo_opt.objective.rank import RunningTrial
from nnlo_opt.objective.script import Script, answer
from nnlo_opt.objective.template import CHECKPOINT, COMMAND, RANKS, SAVE, Template
from nnlo_opt.runtime.devices import NO_GPU, VISIBLE
from nnlo_opt.safe_path import SafePath
from nnlo_opt.trials.kept_weights import FILES_NAME

#: seconds for which a look at a script waits for output; the other ranks of a block are looked at as often
_LOOK_S = 0.02
#: seconds that a script has which was told to stop by `report`, before SIGTERM; and then before SIGKILL
HEARD_S, TERM_S = 1.0, 3.0
#: what block rank 0 tells the other ranks besides reports: its script has ended; all are to start again
_END, _AGAIN = "end", "again"
#: words of a script whose port is taken
_TAKEN = ("EADDRINUSE", "ddress already in use")
#: last lines of an output that the journal has
_N_LINES = 30
#: bytes of a file that are read for its fingerprint, besides its size
_MOST_READ = 2**24


@dataclass(frozen=True, kw_only=True)
class Command:
    """Command whose scripts compute the value of a trial; called on every rank of a block."""

    template: Template
    patterns: Patterns = Patterns()  # noqa: RUF009  (frozen)
    #: names of the objectives
    names: tuple[str, ...] = ()

    def plain(self, trial: RunningTrial) -> Any:
        """Return the result of a trial that saves nothing, on block rank 0; None if it is to stop.

        Raises:
            TrialError: the script has failed, or printed no result.
        """
        return self._run(trial, {})

    def saving(self, trial: RunningTrial) -> Any:
        """Return the result of a trial, which goes on from its last save; as `plain`."""
        rank = 0 if trial.comm is None else trial.comm.Get_rank()
        save = SafePath(trial.directory) / f"save-{rank}"
        save.remove()  # which a crash may have left
        save.mkdir()
        try:
            return self._run(trial, {SAVE: save, CHECKPOINT: trial.checkpoint.folder or ""})
        finally:
            save.remove()

    def _run(self, trial: RunningTrial, saves: dict[str, Any]) -> Any:
        call = _Call(self, trial, saves)
        try:
            return call.run()
        finally:
            call.close()

    def definition(self) -> ModelDefinition:
        """Return this command as an objective; ConfigurationError if its program is missing."""
        words = self.template.words
        program = shutil.which(words[0])
        if program is None and "{" not in words[0]:
            raise ConfigurationError(
                f"`--command` must begin with a program that can be started. Received: {words[0]!r}, which is neither "
                "in PATH nor a file that may be executed. Check its name."
            )
        files = self._files()
        source = next(iter(files), program or words[0])
        given = {"--report-pattern": self.patterns.report, "--result-pattern": self.patterns.result}
        options = {option: text for option, text in given.items() if text is not None}
        parts = {COMMAND: self.template.text, **options, **files}
        return ModelDefinition(
            name=Path(source).stem,
            kind="objective",
            source=Path(source),
            functions={"objective": self.saving if {SAVE, CHECKPOINT} & self.template.names else self.plain},
            fingerprint=hashlib.sha256(repr(parts).encode()).hexdigest(),
            parts=parts,
        )

    def _files(self) -> dict[str, str]:
        """Return the files that the words name, with their fingerprints; of programs only those in text."""
        found = dict[str, str]()
        for number, word in enumerate(self.template.words):
            path = Path(word.rpartition("=")[2])
            if path.is_file():
                with path.open("rb") as file:
                    text = file.read(_MOST_READ)
                if number or text.startswith(b"#!"):
                    found[str(path)] = hashlib.sha256(b"%d " % path.stat().st_size + text).hexdigest()
        return found


class _Call:
    """Scripts of one trial, as one rank of the block sees them; `saves`: values of the placeholders for saves."""

    def __init__(self, command: Command, trial: RunningTrial, saves: dict[str, Any]) -> None:
        self._command, self._trial, self._comm = command, trial, trial.comm
        self._rank: int = 0 if trial.comm is None else trial.comm.Get_rank()
        own = (socket.gethostname(), *map(os.environ.get, VISIBLE))
        folder = trial.directory / FILES_NAME
        make_directory(folder)
        self._others = {"trial": trial.number, "folder": str(folder), **saves}
        #: host of every rank of the block, with the GPUs that it sees
        self._places: list[tuple[str | None, ...]] = [own] if self._comm is None else self._comm.allgather(own)
        self._output = Output(command.names, command.patterns)
        self._size = len(self._places)
        #: reports of the script that are not passed on
        self._reports: deque[Report] = deque()
        #: calls of `nnlo_opt.report` that wait for an answer, each with its epoch
        self._waiting: list[tuple[Any, socket.socket]] = []
        #: the last epoch that was passed on, with the answer; infinite once there is nothing more to pass on
        self._epoch, self._goes_on = 0.0, True
        #: number of starts that have failed as a port was taken
        self._restarts = 0
        self._script = self._start()

    def _start(self) -> Script | None:
        """Start the script; None on a rank that lends itself to the script of block rank 0."""
        trial, hosts = self._trial, [str(place[0]) for place in self._places]
        address = "127.0.0.1" if len({*hosts}) == 1 else hosts[0]
        port = _free_port() if self._rank == 0 else 0
        if self._comm is not None:
            port = self._comm.bcast(port)
        if is_one := RANKS in self._command.template.names:
            hosts = hosts[:1]
        if is_one and self._rank:
            return None
        group = torchrun_environment(
            self._rank, hosts, address=address, port=port, name=f"trial-{trial.number}-{port}", restarts=self._restarts
        )
        # A script may be `torchrun` itself, which reads its port there.
        own = {"PYTHONUNBUFFERED": "1", "PET_MASTER_PORT": str(port)}
        words = self._command.template.filled(trial.parameters, {**self._others, RANKS: self._size})
        environ = without_launcher(os.environ) | self._visible() | group | own
        return Script(words, environ, SafePath(trial.directory) / f"output-{self._rank}.log", self._take)

    def _visible(self) -> dict[str, str]:
        """Return the variables of GPUs: as under `torchrun`, each process sees those of all on its node."""
        host, found = self._places[self._rank][0], dict[str, str]()
        for number, variable in enumerate(VISIBLE, 1):
            seen = [place[number] for place in self._places if place[0] == host]
            if gpus := [gpu for gpu in dict.fromkeys(seen) if gpu not in (None, NO_GPU)]:
                found[variable] = ",".join(map(str, gpus))
        return found

    # ------------------------------------------------------------ what the script says

    def _take(self, line: str, connection: socket.socket | None) -> None:
        report = self._output.take(line)
        if connection is not None and report is None:
            connection.close()
        if report is None:
            return
        if connection is not None:
            self._waiting.append((report.epoch, connection))
            self._answer()
        # Processes of one script may all say the same.
        last = max((r.epoch for r in self._reports if isinstance(r.epoch, int)), default=self._epoch)
        if not isinstance(report.epoch, int) or report.epoch > last:
            self._reports.append(report)

    def _answer(self) -> bool:
        """Answer the reports that were passed on, and those that come late; return True if there was any."""
        heard = [end for epoch, end in self._waiting if not isinstance(epoch, int) or epoch <= self._epoch]
        self._waiting = [(epoch, end) for epoch, end in self._waiting if end not in heard]
        for connection in heard:
            answer(connection, go_on=self._goes_on)
        return bool(heard)

    # ------------------------------------------------------------ the course of the trial

    def run(self) -> Any:
        """See the trial through; as `Command.__call__`."""
        while True:
            match self._next():
                case Report() as report:
                    if report.saves:
                        self._trial.checkpoint.save(report.epoch, self._hand_over)
                    self._goes_on = self._trial.report(report.epoch, report.value, **report.figures)
                    self._epoch = report.epoch
                    has_heard = self._answer()
                    if not self._goes_on:
                        self._stop(HEARD_S if has_heard else 0.0)
                        return None
                case said if said == _AGAIN:
                    self.close()
                    self._restarts += 1
                    self._script = self._start()
                case _:
                    self._epoch = math.inf
                    self._answer()
                    self._wait(self._has_ended)
                    return self._result()

    def _next(self) -> Any:
        """Return what every rank of the block has to do next: block rank 0 tells the others."""
        if self._rank:
            self._wait(lambda: self._comm.Iprobe(0) or (self._has_ended() and False))
            return self._comm.recv(source=0)
        self._wait(lambda: bool(self._reports) or self._has_ended())
        said: Any = self._reports.popleft() if self._reports else _AGAIN if self._must_restart() else _END
        for rank in range(1, self._size):
            self._comm.send(said, dest=rank)
        return said

    def _hand_over(self, folder: Path) -> None:
        """Move what the script has saved to `folder`."""
        if (save := self._others.get(SAVE)) is None:
            raise TrialError('a report has "checkpoint": true, so the command must have `{save}`, the folder to fill')
        for path in save.iterdir():
            path.replace(SafePath(folder) / path.name)

    def _must_restart(self) -> bool:
        """Return True if the script has failed as its port was taken, for the first time."""
        script, is_new = self._script, not (self._rank or self._restarts or self._epoch)
        return is_new and script is not None and bool(script.code) and script.has_said(_TAKEN)

    def _has_ended(self) -> bool:
        """Return True if the script has ended; TrialError if it has failed for good."""
        script = self._script
        if script is None or (code := script.code) is None:
            return script is None
        while script.look(0.0):
            pass
        if code and not self._must_restart():
            raise _failed(code, script.last_lines)
        return True

    def _wait(self, done: Callable[[], bool]) -> None:
        """Return when `done()` is true; the output is read until then."""

        def look() -> bool:
            if done():
                return True
            if self._script is None:
                time.sleep(_LOOK_S)
            else:
                self._script.look(_LOOK_S)
            if self._comm is not None:
                self._comm.Iprobe()  # MPI notices there that mpirun has died
            return done()

        if self._comm is not None:
            self._comm.wait_for(look)
            return
        while not look():
            pass

    def _stop(self, heard_s: float) -> None:
        """End the script, which has so many seconds to leave by itself before SIGTERM comes."""
        if self._script is None:
            return
        for seconds in (heard_s, TERM_S):
            until_s = time.monotonic() + seconds
            while self._script.code is None and time.monotonic() < until_s:
                self._script.look(_LOOK_S)
            self._script.stop()

    def _result(self) -> dict[str, Any] | None:
        if self._rank == 0 and self._output.result is None:
            raise TrialError(
                'the command must print its value as a line like {"value": 0.21}, or as `--result-pattern` says; it '
                "has printed none"
            )
        return self._output.result

    def close(self) -> None:
        """End all that the script has started."""
        for _, connection in self._waiting:
            connection.close()
        self._waiting.clear()
        if self._script is not None:
            self._script.close()


def _failed(code: int, said: list[str]) -> TrialError:
    """Return the error for a script that has ended with `code`; `said`: the end of its output."""
    how = f"with code {code}" if code != 128 + signal.SIGKILL else "by SIGKILL, by hand or for lack of memory"
    last = f"; the last line of its output: {said[-1]}" if said else ", without any output"
    error = TrialError(f"the command has ended {how}{last}")
    error.add_note("\n".join(said[-_N_LINES:]))
    return error


def _free_port() -> int:
    with socket.socket() as end:
        end.bind(("", 0))
        port: int = end.getsockname()[1]
        return port
