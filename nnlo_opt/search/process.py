"""The search as the coordinator sees it: requests that never wait, in its own process or, as a twin, in this one."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nnlo_opt.errors import ConfigurationError, NnloError
from nnlo_opt.runtime.environment import module_command, without_mpi
from nnlo_opt.search.base import Observation, TrialRecord
from nnlo_opt.search.session import SearchSession
from nnlo_opt.space.space import Point, Space

#: trials in one line, so that none is long
_TRIALS_A_LINE = 200
#: a process has this long to load a space or an algorithm: a module may import a framework from a slow file system
_START_TIMEOUT_S = 300.0
#: how long a process may take to end before it is killed
_CLOSE_TIMEOUT_S = 2.0
#: characters of its standard error that are told when a process has died
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The answer to one request: a point, or None when every point of the space was suggested; and what it took."""

    request: int
    point: Point | None
    cpu_s: float
    wall_s: float


class SearchService(Protocol):
    """What the coordinator asks of a search. Only `load_space`, `start`, `wait` and `close` may take time.

    Every method but `close` raises NnloError when the search has broken down, ConfigurationError when that is due to
    the user's constraint.
    """

    def load_space(self, source: str, fixed: Mapping[str, str] | None = None) -> Space:
        """The space of a user's file or module, without its constraint's function, which stays with the search.

        ConfigurationError as `nnlo_opt.space.loading.load_space`.
        """
        ...

    def start(self, algorithm: str, space: Space, seed: int, options: Mapping[str, Any]) -> None:
        """Begin with an empty history; ConfigurationError as `make_search`."""
        ...

    def adopt(self, observations: Sequence[Observation]) -> None:
        """Begin with what other runs have measured; before anything is recorded."""
        ...

    def record(self, trials: Sequence[TrialRecord]) -> None:
        """Add to the history, for all suggestions requested later."""
        ...

    def request_suggestion(self, request: int) -> None:
        """Ask for a point that follows what was recorded so far."""
        ...

    def poll(self) -> Suggestion | None:
        """An answer that is there, in the order of the requests; NnloError also when the algorithm raised."""
        ...

    def wait(self, timeout_s: float) -> Suggestion | None:
        """As `poll`, but wait for the answer; None when it has not come in time."""
        ...

    def close(self) -> None:
        """End the search; closing again does nothing."""
        ...


class SearchProcess:
    """A search in a spawned process: a fit there leaves this process's message loop alone.

    Pipes are never waited for: what does not fit into them stays here and leaves with the next call of `poll`.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, with `environment` (`os.environ` unless given) less what belongs to MPI."""
        #: what the process says besides answers; a file, as a pipe that nobody reads would fill up
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            module_command("nnlo_opt.search.serve"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=without_mpi(os.environ if environment is None else environment),
            # Signals that mpirun or a terminal sends to this process's group are not for the search.
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._requests.fileno(), False)
        os.set_blocking(self._answers.fileno(), False)
        #: requests not yet encoded; they leave after `_outgoing`
        self._waiting: deque[dict[str, Any]] = deque()
        #: bytes of requests that the pipe has not yet taken
        self._outgoing = b""
        #: bytes of an answer that has not yet come whole
        self._incoming = b""
        #: answers to requests for a suggestion that came and were not yet taken
        self._arrived: deque[dict[str, Any]] = deque()
        self._closed = False

    def __enter__(self) -> "SearchProcess":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def load_space(self, source: str, fixed: Mapping[str, str] | None = None) -> Space:
        try:
            return Space.from_json(self._ask(_load_request(source, fixed))["space"])
        except ConfigurationError:
            raise
        except NnloError as error:
            raise ConfigurationError(
                f"A search space must load without ending its process. Received: {source}. "
                + " ".join(str(error).split())
            ) from error

    def start(self, algorithm: str, space: Space, seed: int, options: Mapping[str, Any]) -> None:
        self._ask(_start_request(algorithm, space, seed, options))

    def adopt(self, observations: Sequence[Observation]) -> None:
        for first in range(0, len(observations), _TRIALS_A_LINE):
            some = list(observations[first : first + _TRIALS_A_LINE])
            self._waiting.append({"op": "adopt", "observations": some})
        self._send()

    def record(self, trials: Sequence[TrialRecord]) -> None:
        for first in range(0, len(trials), _TRIALS_A_LINE):
            self._waiting.append({"op": "record", "trials": list(trials[first : first + _TRIALS_A_LINE])})
        self._send()

    def request_suggestion(self, request: int) -> None:
        self._waiting.append({"op": "suggest", "request": request})
        self._send()

    def poll(self) -> Suggestion | None:
        self._send()
        self._arrived.extend(self._receive())
        return _suggestion(self._arrived.popleft()) if self._arrived else None

    def wait(self, timeout_s: float) -> Suggestion | None:
        deadline_s = time.monotonic() + timeout_s
        while (suggestion := self.poll()) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._wait_for_pipes(left_s)
        return suggestion

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._process.terminate()
        for pipe in (self._requests, self._answers):
            pipe.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request that is answered with `ok`, and wait for the answer."""
        self._waiting.append(request)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while True:
            self._send()
            for answer in self._receive():
                if "ok" not in answer:
                    self._arrived.append(answer)
                elif answer["ok"]:
                    return answer
                else:
                    raise ConfigurationError(answer["error"])
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise NnloError(f"The search process has not answered `{request['op']}` in {_START_TIMEOUT_S:.0f} s.")
            self._wait_for_pipes(left_s)

    def _send(self) -> None:
        """Hand to the pipe what it takes now."""
        while not self._closed and (self._outgoing or self._waiting):
            if not self._outgoing:
                self._outgoing = json.dumps(self._waiting.popleft(), allow_nan=False).encode() + b"\n"
            try:
                n_written = os.write(self._requests.fileno(), self._outgoing)
            except BlockingIOError:
                return
            except BrokenPipeError:
                raise self._death() from None
            self._outgoing = self._outgoing[n_written:]

    def _receive(self) -> list[dict[str, Any]]:
        """The answers that have come whole."""
        while not self._closed:
            try:
                data = os.read(self._answers.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                raise self._death()
            self._incoming += data
        *lines, self._incoming = self._incoming.split(b"\n")
        return [json.loads(line) for line in lines]

    def _wait_for_pipes(self, timeout_s: float) -> None:
        if self._closed:
            raise NnloError("A search that was closed cannot be waited for.")
        pipes = select.poll()
        pipes.register(self._answers, select.POLLIN)
        if self._outgoing or self._waiting:
            pipes.register(self._requests, select.POLLOUT)
        pipes.poll(1000 * timeout_s)

    def _death(self) -> NnloError:
        """What to raise when the process has ended unasked."""
        try:
            status: int | None = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        self._stderr.seek(0)
        tail = self._stderr.read().decode(errors="replace")[-_TAIL_CHARACTERS:].strip()
        return NnloError(f"The search process has ended with status {status}. It said last:\n{tail or '(nothing)'}")


class InlineSearch:
    """The same search in this process, for tests and simulation; a request is answered before it returns."""

    def __init__(self) -> None:
        self._session = SearchSession()
        #: answers to requests for a suggestion that were not yet taken
        self._arrived: deque[dict[str, Any]] = deque()

    def load_space(self, source: str, fixed: Mapping[str, str] | None = None) -> Space:
        return Space.from_json(self._ask(_load_request(source, fixed))["space"])

    def start(self, algorithm: str, space: Space, seed: int, options: Mapping[str, Any]) -> None:
        self._ask(_start_request(algorithm, space, seed, options))

    def adopt(self, observations: Sequence[Observation]) -> None:
        self._session.handle({"op": "adopt", "observations": observations})

    def record(self, trials: Sequence[TrialRecord]) -> None:
        self._session.handle({"op": "record", "trials": trials})

    def request_suggestion(self, request: int) -> None:
        answer = self._session.handle({"op": "suggest", "request": request})
        assert answer is not None
        self._arrived.append(answer)

    def poll(self) -> Suggestion | None:
        return _suggestion(self._arrived.popleft()) if self._arrived else None

    def wait(self, timeout_s: float) -> Suggestion | None:
        return self.poll()

    def close(self) -> None:
        self._arrived.clear()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._session.handle(request)
        assert answer is not None
        if not answer["ok"]:
            raise ConfigurationError(answer["error"])
        return answer


def _load_request(source: str, fixed: Mapping[str, str] | None) -> dict[str, Any]:
    return {"op": "load_space", "source": source, "fixed": dict(fixed or {})}


def _start_request(algorithm: str, space: Space, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"op": "start", "algorithm": algorithm, "space": space.to_json(), "seed": seed, "options": dict(options)}


def _suggestion(answer: dict[str, Any]) -> Suggestion:
    if "refused" in answer:
        raise ConfigurationError(answer["refused"])
    if "error" in answer:
        raise NnloError(f"The search algorithm has failed:\n{answer['error']}")
    return Suggestion(**answer)
