"""Search service of the coordinator: non-blocking requests to a separate process, or to this one."""

import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from threadpoolctl import ThreadpoolController

from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.base import SearchAlgorithm, Suggestion, TrialRecord
from nnlo_opt.core.space.constraint import Constraint
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.engine.runtime.environment import module_command, start_helper, wait_or_kill, without_mpi
from nnlo_opt.engine.runtime.watchdog import LOOK_PART, Watch
from nnlo_opt.engine.search.handler import SearchHandler

#: trials sent in one line, so that no line is long
_TRIALS_A_LINE = 200
#: time limit for loading a space or an algorithm, seconds: a module may import a framework from a slow file system
_START_TIMEOUT_S = 300.0
#: time limit for the last question about a run, seconds
_LAST_WORD_S = 10.0
#: seconds that a process gets to exit before it is killed
_CLOSE_TIMEOUT_S = 2.0
#: characters of the process's standard error shown when it has died
_TAIL_CHARACTERS = 2000


class SearchService(ABC):
    """Interface of a search for the coordinator; only `load_space`, `start` and `close` may block.

    Every method except `close` raises NnloError if the search has failed, and ConfigurationError if the user's
    constraint has.
    """

    def __init__(self) -> None:
        #: suggestions that have arrived but were not taken
        self._arrived: deque[dict[str, Any]] = deque()

    def load_space(self, source: str, fixed: Mapping[str, str] | None = None) -> Space:
        """Return the space of a user's file or module; the function of its constraint stays with the search.

        Raises:
            ConfigurationError: as `nnlo_opt.engine.loading.spaces.load_space`.
        """
        answer = self._ask({"op": "load_space", "source": source, "fixed": dict(fixed or {})})
        return Space.from_json(answer["space"])

    def start(self, algorithm: str | SearchAlgorithm, space: Space, seed: int, options: Mapping[str, Any]) -> str:
        """Start with an empty history; return a remark for the user, or "".

        An object can only be the algorithm of a search in this process.

        Raises:
            ConfigurationError: as `make_search`, or a start point is not in the space.
        """
        request = {"algorithm": algorithm, "space": space.to_json(), "seed": seed, "options": dict(options)}
        remark: str = self._ask({"op": "start", **request})["remark"]
        return remark

    def adopt(self, observations: Sequence[Observation]) -> None:
        """Add values that other runs have measured; must be called before `record`."""
        for first in range(0, len(observations), _TRIALS_A_LINE):
            self._tell({"op": "adopt", "observations": list(observations[first : first + _TRIALS_A_LINE])})

    def record(self, trials: Sequence[TrialRecord]) -> None:
        """Add trials to the history of all suggestions requested later."""
        for first in range(0, len(trials), _TRIALS_A_LINE):
            self._tell({"op": "record", "trials": list(trials[first : first + _TRIALS_A_LINE])})

    def enqueue(self, point: Point) -> None:
        """Suggest a full or partial point, as returned by `check_start_points`, before any other."""
        self._tell({"op": "enqueue", "point": point})

    def request_suggestion(self, request: int) -> None:
        """Request a suggestion based on all trials recorded so far."""
        self._tell({"op": "suggest", "request": request})

    def best_expected(self) -> int:
        """Return the number of the best expected trial given all recorded trials, or -1.

        This takes the time of a fit and of a pending suggestion; NnloError after some seconds without an answer.
        """
        expected: int = self._ask({"op": "expect"}, _LAST_WORD_S)["expected"]
        return expected

    def poll(self) -> Suggestion | None:
        """Return the next answer in the order of the requests, if it has arrived; NnloError if the algorithm raised."""
        if not self._arrived:
            return None
        answer = self._arrived.popleft()
        if "refused" in answer:
            raise ConfigurationError(answer["refused"])
        if "error" in answer:
            raise NnloError(f"The search algorithm has failed:\n{answer['error']}")
        return Suggestion(**answer)

    @abstractmethod
    def close(self) -> None:
        """End the search. Idempotent."""

    @abstractmethod
    def _tell(self, request: dict[str, Any]) -> None:
        """Send a request; a suggestion in answer goes to `_arrived`."""

    @abstractmethod
    def _answer_to(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the `ok` answer to a request; NnloError if it does not arrive in time."""

    def _ask(self, request: dict[str, Any], timeout_s: float = _START_TIMEOUT_S) -> dict[str, Any]:
        answer = self._answer_to(request, timeout_s)
        if not answer["ok"]:
            raise ConfigurationError(answer["error"])
        return answer


class SearchProcess(SearchService):
    """Search in a separate process, so that a fit does not block this process's message loop.

    This process never waits for pipes: bytes that do not fit are sent by the next call of `poll`.

    A started search survives its process: if that ends or does not answer, a new one gets the same requests and
    suggests the same points. NnloError if that does not answer, either.

    Args:
        environment: environment of the process, without variables of MPI; by default `os.environ`.
        timeout_s: longest time without an answer, in seconds (`--hang-timeout`); 0 for no limit.
        say: prints a line for the user.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 0.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__()
        self._environment = dict(os.environ if environment is None else environment)
        self._folder = os.getcwd()  # user code may change it
        self._say = say
        #: all requests from `start` on; empty before
        self._sent: list[dict[str, Any]] = []
        #: number of requests for suggestions, of suggestions, and of suggestions when the last process failed
        self._n_asked, self._n_suggested, self._failed_at = 0, 0, -1
        self._timeout_s, self._watch = timeout_s, Watch(timeout_s, LOOK_PART * timeout_s)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        #: standard error of the process; a file, because an unread pipe would fill up
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = start_helper(
            module_command("nnlo_opt.engine.search.serve"),
            without_mpi(self._environment),
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._answers.fileno(), False)
        #: number of answers of this process; the first one means that it has loaded everything
        self._n_answers = 0
        asked = count()
        #: requests that are not encoded yet; they are sent after `_outgoing`
        self._waiting = deque(r for r in self._sent if r["op"] != "suggest" or next(asked) >= self._n_suggested)
        #: bytes of requests not yet sent, and of an incomplete answer
        self._outgoing = self._incoming = b""

    def load_space(self, source: str, fixed: Mapping[str, str] | None = None) -> Space:
        try:
            return super().load_space(source, fixed)
        except ConfigurationError:
            raise
        except NnloError as error:
            raise ConfigurationError(
                f"A search space must load without ending its process. Received: {source}. "
                + " ".join(str(error).split())
            ) from error

    def poll(self) -> Suggestion | None:
        self._send()
        self._arrived.extend(answer for answer in self._receive() if not answer.get("ok"))
        patience = math.inf
        if self._timeout_s and self._n_asked > self._n_suggested and not self._closed:
            patience = 1.0 if self._n_answers else max(1.0, _START_TIMEOUT_S / self._timeout_s)
        if self._watch.look(self._n_asked + self._n_answers, patience, time.monotonic()):
            self._replace(f"has not answered for longer than `--hang-timeout`, {self._timeout_s:g} s")
        return super().poll()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(OSError), self._process, self._stderr:  # user code may have closed one
            self._end()

    def _end(self) -> int:
        """End the process, even if it is stopped; return its status."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        return wait_or_kill(self._process, _CLOSE_TIMEOUT_S)

    def _replace(self, how: str = "") -> None:
        """Replace the process by a new one; NnloError if the last one has not suggested anything.

        `how`: what it did, if it has not ended by itself.
        """
        status = self._end()
        how = f"The search process {how or f'has ended with status {status}'}"
        if not self._sent or self._failed_at == self._n_suggested:
            self._stderr.seek(0)
            tail = self._stderr.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
            again = (
                f", like the one before it at this suggestion; `{spelled('opt_restore', True)}` continues from here"
                * bool(self._sent)
            )
            raise NnloError(f"{how}{again}. Its last output:\n{tail or '(nothing)'}")
        self._failed_at = self._n_suggested
        self._say(f"{how}: another one replaces it, with all trials so far.")
        with suppress(OSError), self._process, self._stderr:  # whose files are closed then
            self._begin()

    def _tell(self, request: dict[str, Any]) -> None:
        self._sent += [request] * bool(self._sent)
        self._n_asked += request["op"] == "suggest"
        self._waiting.append(request)
        self._send()

    def _answer_to(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self._sent += [request] * (request["op"] == "start")
        self._waiting.append(request)
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._send()
            for answer in self._receive():
                if "ok" in answer:
                    return answer
                self._arrived.append(answer)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NnloError(f"The search process has not answered `{request['op']}` in {timeout_s:.0f} s.")
            self._wait_for_pipes(left_s)

    def _send(self) -> None:
        """Write to the pipe as much as fits now."""
        while not self._closed and (self._outgoing or self._waiting):
            if not self._outgoing:
                self._outgoing = json.dumps(self._waiting.popleft(), allow_nan=False).encode() + b"\n"
            try:
                n_written = os.write(self._requests.fileno(), self._outgoing)
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._replace()
            else:
                self._outgoing = self._outgoing[n_written:]

    def _receive(self) -> list[dict[str, Any]]:
        """Return the answers that have arrived completely."""
        while not self._closed:
            try:
                data = os.read(self._answers.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                self._replace()
                break
            self._incoming += data
        *lines, self._incoming = self._incoming.split(b"\n")
        answers = [json.loads(line) for line in lines]
        self._n_answers += len(answers)
        self._n_suggested += sum("request" in answer for answer in answers)
        return answers

    def _wait_for_pipes(self, timeout_s: float) -> None:
        if self._closed:
            raise NnloError("A search must not be waited for after it was closed.")
        pipes = select.poll()
        pipes.register(self._answers, select.POLLIN)
        if self._outgoing or self._waiting:
            pipes.register(self._requests, select.POLLOUT)
        pipes.poll(1000 * timeout_s)


class InlineSearch(SearchService):
    """Search in this process, for scripts, tests and simulations; requests are answered synchronously.

    Suggestions are computed with one thread, as in a search process: fits are small, and BLAS threads would wait for
    each other longer than they work.

    Args:
        constraint: constraint of the search space, if its function already is in this process.
    """

    def __init__(self, constraint: Constraint | None = None) -> None:
        super().__init__()
        self._session = SearchHandler(constraint)
        #: libraries of this process that have threads, with the algorithm's libraries once it has started
        self._libraries = ThreadpoolController()

    def close(self) -> None:
        self._arrived.clear()

    def _tell(self, request: dict[str, Any]) -> None:
        with self._libraries.limit(limits=1):
            answer = self._session.handle(request)
        if answer is not None:
            self._arrived.append(answer)

    def _answer_to(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._libraries.limit(limits=1):
            answer = self._session.handle(request)
        assert answer is not None
        self._libraries = ThreadpoolController()
        return answer
