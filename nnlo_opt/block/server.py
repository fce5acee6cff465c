"""The loop of a rank that trains: takes messages and hands them to whoever plays the role they are for."""

import logging
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from nnlo_opt.block.master import Master
from nnlo_opt.block.objective import ObjectiveRank
from nnlo_opt.block.worker import Worker, reason_of
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Received, Transport, receive
from nnlo_opt.errors import NnloError, ProtocolError

logger = logging.getLogger(__name__)

COORDINATOR = 0


class Desk(Protocol):
    """What a rank can find out and do about the user's model and data, whatever the framework."""

    def prepare(self) -> None:
        """Import what training will need."""

    def inspect(self, space_data: dict[str, Any] | None) -> dict[str, Any]:
        """Describe model and data as plain data; ConfigurationError for what is wrong with them."""

    def export(self, point: dict[str, Any], weights_directory: Path, path: Path) -> Path:
        """Save the model of `point` with the weights in `weights_directory`; returns where."""


class Roles(Protocol):
    """Makes the roles of this rank once the run is open."""

    def master(self, run: msg.OpenRun) -> Master | None: ...

    def worker(self, run: msg.OpenRun) -> Worker | None: ...

    def objective(self, run: msg.OpenRun) -> ObjectiveRank | None: ...


class RankServer:
    """One rank of a team, from its start to the coordinator's Shutdown."""

    def __init__(
        self,
        orders: Transport,
        master_end: Transport | None,
        worker_end: Transport | None,
        desk: Desk,
        roles: Roles,
    ) -> None:
        """`orders` leads to the coordinator; the ends are this rank's places in its team (both, in a team of one)."""
        self._orders = orders
        self._master_end = master_end
        self._worker_end = worker_end
        self._desk = desk
        self._roles = roles
        self._master: Master | None = None
        self._worker: Worker | None = None
        self._objective: ObjectiveRank | None = None
        #: set by Shutdown
        self.exit_code: int | None = None
        #: the last messages taken in, for the story told when we fail
        self.story: deque[str] = deque(maxlen=40)
        #: transports listened to, and who takes what comes; the team's join when the run is open, since its messages
        #: may overtake the coordinator's on the other transport
        self._handlers: list[tuple[Transport, Callable[[Received], None]]] = [(orders, self._take_order)]

    def serve(self) -> int:
        """Serve until Shutdown; returns the exit code."""
        while self.exit_code is None:
            found = receive([transport for transport, _ in self._handlers])
            if found is not None:
                self._dispatch(*found)
        return self.exit_code

    def step(self) -> bool:
        """Take in one message if there is one; for a process that also coordinates."""
        for transport, _ in self._handlers:
            received = transport.poll()
            if received is not None:
                self._dispatch(transport, received)
                return True
        return False

    def _dispatch(self, transport: Transport, received: Received) -> None:
        self.story.append(f"from {received.source}: {str(received.message)[:300]}")
        take = next(take for end, take in self._handlers if end is transport)
        try:
            take(received)
        except Exception as error:
            for message in self.story:
                error.add_note(f"took in {message}")
            raise

    # ------------------------------------------------------------ one method per transport

    def _take_order(self, received: Received) -> None:
        message = received.message
        match message:
            case msg.Shutdown():
                self.exit_code = message.exit_code
            case msg.Inspect():
                self._inspect(message)
            case msg.ExportModel():
                self._export(message)
            case msg.OpenRun():
                self._open(message)
            case _:
                role = self._objective or self._master
                if role is None:
                    raise ProtocolError(f"{type(message).__name__} came before the run was open.")
                role.handle_order(message)

    def _open(self, run: msg.OpenRun) -> None:
        self._master = self._roles.master(run)
        self._worker = self._roles.worker(run)
        self._objective = self._roles.objective(run)
        if self._master_end is not None:
            self._handlers.append((self._master_end, self._take_for_master))
        if self._worker_end is not None:
            self._handlers.append((self._worker_end, self._take_for_worker))

    def _take_for_master(self, received: Received) -> None:
        if self._master is not None:
            self._master.handle(received)
        elif self._objective is not None:
            self._objective.handle(received.message)
        else:
            raise ProtocolError("A worker sent a message before the run was open.")

    def _take_for_worker(self, received: Received) -> None:
        if self._worker is not None:
            self._worker.handle(received)
        elif self._objective is not None:
            self._objective.handle(received.message)
        else:
            raise ProtocolError("A master sent a message before the run was open.")

    # ------------------------------------------------------------ model and data

    def _inspect(self, message: msg.Inspect) -> None:
        if not message.report:
            self._desk.prepare()
            return
        try:
            self._desk.prepare()
            answer = msg.Inspected(findings=self._desk.inspect(message.space))
        except NnloError as error:
            answer = msg.Inspected(error=str(error))
        except (Exception, SystemExit) as error:
            logger.exception("could not read model or data")
            last = traceback.extract_tb(error.__traceback__)[-1]
            answer = msg.Inspected(
                error=f"Model or data could not be read: {reason_of(error)} (`{last.filename}`, line {last.lineno})."
            )
        self._orders.send(COORDINATOR, answer)

    def _export(self, message: msg.ExportModel) -> None:
        try:
            path = self._desk.export(message.point, Path(message.weights_path), Path(message.path))
            answer = msg.ModelExported(path=str(path))
        except (Exception, SystemExit) as error:
            logger.exception("could not save the best model")
            answer = msg.ModelExported(path="", error=reason_of(error))
        self._orders.send(COORDINATOR, answer)
