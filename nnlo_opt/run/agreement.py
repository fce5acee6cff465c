"""Agreement among the ranks of a user's own script, outside of a run."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nnlo_opt.block.answers import reason_of
from nnlo_opt.comm.messages import Json
from nnlo_opt.errors import EXIT_FAILURE, EXIT_WRONG_REQUEST, ConfigurationError
from nnlo_opt.runtime.log import wait_until_read

if TYPE_CHECKING:
    from nnlo_opt.comm.mpi.world import Communicator, World

Value = TypeVar("Value")


class FailedElsewhereError(ConfigurationError):
    """An error of another rank, which tells it; this rank only stops."""


class RankGroup:
    """The ranks of a communicator. All methods are collective: every rank of the group calls them.

    Args:
        comm: is duplicated; None for a rank alone, without MPI.
    """

    def __init__(self, comm: "Communicator | None") -> None:
        alone = comm is None or comm.Get_size() == 1
        #: None if there is one rank
        self.comm = None if alone or comm is None else comm.Dup()
        self.rank = 0 if self.comm is None else self.comm.Get_rank()
        self.size = 1 if self.comm is None else self.comm.Get_size()

    def attempt(self, function: Callable[[], Value]) -> Value:
        """Return the value of `function`; if it raises on a rank, no rank returns."""
        value, error = None, None
        try:
            value = function()
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = raised
        if self.comm is not None:
            own = None if error is None or isinstance(error, FailedElsewhereError) else reason_of(error)
            reasons = self.comm.allgather(own)
            first = next((rank for rank, reason in enumerate(reasons) if reason is not None), self.rank)
            if first != self.rank:  # one rank is enough to tell it
                error = FailedElsewhereError(reasons[first])
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of int64 vectors of equal length."""
        return vector if self.comm is None else self.comm.allreduce(vector)

    def share(self, data: np.ndarray | None, root: int = 0) -> np.ndarray:
        """Return the float32 vector (n,) that rank `root` has."""
        if self.comm is None:
            assert data is not None
            return data
        n = self.comm.bcast(None if data is None else len(data), root)
        buffer = data if data is not None and self.rank == root else np.empty(n, np.float32)
        self.comm.Bcast(buffer, root)
        return buffer

    def share_json(self, value: Json, root: int = 0) -> Json:
        """Return the plain data that rank `root` has."""
        return value if self.comm is None else self.comm.bcast(value, root)

    def on_node(self, given: bytes) -> dict[int, bytes]:
        """Return what each rank on this node gave; all give equally many bytes."""
        world = self.world()
        return {0: given} if world is None else world.on_node(given)

    def world(self) -> "World | None":
        """Return the world of these ranks; None for a rank alone."""
        if self.comm is None:
            return None
        from nnlo_opt.comm.mpi.world import World

        return World(self.comm)

    def close(self) -> None:
        """Free the communicator."""
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.Free()


def abort_on_error(comm: "Communicator | None") -> Callable[[], None]:
    """Have an exception that nobody catches end all ranks of `comm`, which else would wait for this one.

    Nothing is changed if `comm` is None.

    Returns:
        A function that takes that back.
    """
    if comm is None:
        return lambda: None
    before = sys.excepthook
    is_on = [True]

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_on[0] and isinstance(error, FailedElsewhereError):
            return
        try:
            before(kind, error, trace)
        finally:
            wait_until_read(sys.stdout, sys.stderr)
        if is_on[0]:
            comm.Abort(EXIT_WRONG_REQUEST if isinstance(error, ConfigurationError) else EXIT_FAILURE)

    def restore() -> None:
        # Another hook may stand before this one, which then only passes on.
        is_on[0] = False
        if sys.excepthook is hook:
            sys.excepthook = before

    sys.excepthook = hook
    return restore
