"""Group of the ranks of a user's script, for agreements outside of a run."""

import json
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_WRONG_REQUEST, ConfigurationError
from nnlo_opt.core.base.user_code import reason_of
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.engine.runtime.log import wait_until_read
from nnlo_opt.engine.runtime.process import only_here

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator, World

T = TypeVar("T")


class FailedElsewhereError(ConfigurationError):
    """An error that another rank reports; this rank only stops."""


class RankGroup:
    """The ranks of a communicator.

    Collective: every rank of the group must call every method, in the same order; else the others hang.

    Args:
        comm: communicator, which is duplicated; None for a single rank without MPI.
    """

    def __init__(self, comm: "Communicator | None") -> None:
        #: None if there is one rank
        self.comm = None if comm is None or comm.Get_size() == 1 else comm.Dup()
        self.rank = 0 if self.comm is None else self.comm.Get_rank()
        self.size = 1 if self.comm is None else self.comm.Get_size()

    def attempt(self, function: Callable[[], T]) -> T:
        """Return the value of `function`; if it raises on any rank, all ranks raise."""
        value, error = None, None
        try:
            value = function()
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = raised
        if self.comm is not None:
            states = np.zeros(self.size, np.int8)
            own = 0 if error is None else 1 if not isinstance(error, FailedElsewhereError) else 2
            self.comm.Allgather(np.array([own], np.int8), states)
            if (states == 1).any():
                first = int(np.argmax(states == 1))
                reason = self.share_json(None if error is None else reason_of(error), first)
                # One rank is enough to report it.
                error = error if self.rank == first else FailedElsewhereError(str(reason))
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of int64 vectors of equal length."""
        if self.comm is None:
            return vector
        total = np.zeros_like(vector)
        self.comm.Allreduce(vector, total)
        return total

    def share(self, data: np.ndarray | None, root: int = 0, kind: type[np.generic] = np.float32) -> np.ndarray:
        """Return the vector (n,) of type `kind` of rank `root`."""
        if self.comm is None:
            assert data is not None
            return data
        length = np.array([0 if data is None else len(data)], np.int64)
        self.comm.Bcast(length, root)
        buffer = data if data is not None and self.rank == root else np.empty(int(length[0]), kind)
        from nnlo_opt.engine.comm.mpi.parts import broadcast

        broadcast(self.comm, buffer, root)
        return buffer

    def share_json(self, value: Json, root: int = 0) -> Json:
        """Return the plain data of rank `root`."""
        text = np.frombuffer(bytearray(json.dumps(value), "ascii"), np.uint8)
        return json.loads(self.share(text, root, np.uint8).tobytes())

    def on_node(self, given: bytes) -> dict[int, bytes]:
        """Return rank -> bytes given, for all ranks on this node; all must give equally many bytes."""
        world = self.world()
        return {0: given} if world is None else world.on_node(given)

    def world(self) -> "World | None":
        """Return the world of these ranks; None for a rank alone."""
        if self.comm is None:
            return None
        from nnlo_opt.engine.comm.mpi.world import World

        return World(self.comm)

    def close(self) -> None:
        """Free the communicator."""
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.Free()


def abort_on_error(comm: "Communicator | None") -> Callable[[], None]:
    """Abort all ranks of `comm` on an uncaught exception; otherwise they would wait for this one.

    Does nothing if `comm` is None.

    Returns:
        A function that undoes this.
    """
    if comm is None:
        return lambda: None
    before = sys.excepthook
    is_on = [True]

    def end_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_on[0] and isinstance(error, FailedElsewhereError):
            return
        try:
            before(kind, error, trace)
        finally:
            wait_until_read(sys.stdout, sys.stderr)
        if is_on[0]:
            from nnlo_opt.engine.comm.mpi.world import World

            World(comm).abort(EXIT_WRONG_REQUEST if isinstance(error, ConfigurationError) else EXIT_FAILURE)

    def restore() -> None:
        # Another hook may stand before this one, which then only passes on.
        is_on[0] = False
        if sys.excepthook is hook:
            sys.excepthook = before

    sys.excepthook = hook = only_here(end_all, before)
    return restore
