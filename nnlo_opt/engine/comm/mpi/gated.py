"""Communicator of an objective, whose blocking calls raise if another rank has raised."""

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from mpi4py import MPI

from nnlo_opt.core.comm.transport import wait_until


class GatedComm(MPI.Intracomm):
    """Communicator whose blocking calls raise if another rank has raised; the `comm` of objectives.

    It is a duplicate of a team's communicator, for a user's objective. Before a collective call every rank calls
    `meet`, which returns when all ranks are at the same call. Sends and receives poll, and look out for failures. So a
    rank that waits for one that has raised also raises instead of hanging. Communicators made from it (`Split`, `Dup`)
    are ordinary ones, without this protection and its cost of about 0.1 ms per collective call.
    """

    _gate: "Gate"
    #: communicators that the objective has created from this one
    _made: list[MPI.Comm]

    def __new__(cls, comm: MPI.Comm, gate: "Gate") -> "GatedComm":
        """Duplicate `comm`. Collective: every rank of `comm`."""
        self = super().__new__(cls, comm.Dup())
        self._gate = gate
        self._made = []
        return self

    @property
    def communicators(self) -> list[MPI.Comm]:
        """Communicators in which ranks may wait for a dead one: this one, and all that the objective made from it."""
        return [MPI.Intracomm(self), *self._made]

    def close(self) -> None:
        """Free the communicator. Collective: every rank of it."""
        with suppress(MPI.Exception):  # a user's objective may have freed it
            self.Free()

    def meet(self, name: str) -> None:
        """Wait until every rank is about to make the collective call `name`."""
        self._gate.meet(name)

    def wait_for(self, done: Callable[[], Any]) -> None:
        """Wait until `done()` is True; raise if the call of the objective has failed."""

        def look() -> bool:
            if done():
                return True
            self._gate.look_out()
            return False

        wait_until(look)


class Gate(Protocol):
    """Informs a `GatedComm` about the other ranks."""

    def meet(self, name: str) -> object:
        """Return when every rank has called `meet` with the same name; raise if the call has failed."""

    def look_out(self) -> None:
        """Raise if the call has failed."""


def _collective(name: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)

    @functools.wraps(plain)
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> Any:
        self.meet(name)
        # The call is made on an ordinary communicator, as a communicator made by it must be ordinary.
        result = plain(MPI.Intracomm(self), *args, **kwargs)
        if isinstance(result, MPI.Comm):
            self._made = [comm for comm in (*self._made, result) if comm != MPI.COMM_NULL]
        return result

    return call


def _receiving(name: str) -> Callable[..., Any]:
    """Return a call that polls for a message before it receives; `Recv` and `recv` take a buffer before the source."""
    plain = getattr(MPI.Intracomm, name)
    n_before = 1 if name in ("Recv", "recv") else 0

    @functools.wraps(plain)
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> Any:
        given = args[n_before:]
        source = kwargs.get("source", given[0] if given else MPI.ANY_SOURCE)
        tag = kwargs.get("tag", given[1] if len(given) > 1 else MPI.ANY_TAG)
        self.wait_for(lambda: self.Iprobe(source, tag))
        return plain(self, *args, **kwargs)

    return call


def _sending(name: str) -> Callable[..., Any]:
    """Return a send that uses the non-blocking form, which takes the same arguments."""
    start = getattr(MPI.Intracomm, ("I" if name[0].isupper() else "i") + name.lower())

    @functools.wraps(getattr(MPI.Intracomm, name))
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> None:
        request = start(self, *args, **kwargs)
        self.wait_for(request.Test)

    return call


def _exchanging(name: str, send: str, receive: str) -> Callable[..., Any]:
    plain = getattr(MPI.Intracomm, name)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def call(self: GatedComm, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        _, sent, dest, sendtag, buffer, source, recvtag, status = given.arguments.values()
        request = getattr(MPI.Intracomm, send)(self, sent, dest, sendtag)
        received = getattr(self, receive)(buffer, source, recvtag, status)
        self.wait_for(request.Test)
        return received

    return call


#: calls that move data, and calls that make communicators
_COLLECTIVES = (
    "Barrier barrier Bcast bcast Gather Gatherv gather Scatter Scatterv scatter Allgather Allgatherv allgather "
    "Alltoall Alltoallv Alltoallw alltoall Reduce reduce Allreduce allreduce Scan scan Exscan exscan "
    "Reduce_scatter Reduce_scatter_block "
    "Clone Create Create_cart Create_dist_graph Create_dist_graph_adjacent Create_graph Dup Dup_with_info "
    "Split Split_type"
)
for _name in _COLLECTIVES.split():
    setattr(GatedComm, _name, _collective(_name))
for _name in ("Recv", "recv", "Probe", "probe", "Mprobe", "mprobe"):
    setattr(GatedComm, _name, _receiving(_name))
for _name in ("Send", "send", "Ssend", "ssend"):
    setattr(GatedComm, _name, _sending(_name))
GatedComm.Sendrecv = _exchanging("Sendrecv", "Isend", "Recv")  # type: ignore[method-assign]
GatedComm.sendrecv = _exchanging("sendrecv", "isend", "recv")  # type: ignore[method-assign]
