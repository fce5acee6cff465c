"""Agreement of the ranks of a user's program on each collective call.

Before a call all ranks sum a *head* of nine integers. The sums show whether all ranks make the same call, how many
samples they have together, and which ranks have joined, that is, have no more data but take part in the calls of the
others until these join, too. So ranks at different calls raise an error instead of hanging.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.records import Frozen

#: kinds of calls; `chunks` is a sum by parts, each sent as soon as it is ready
KINDS = ("sum", "min", "max", "product", "gather", "broadcast", "chunks", "float16", "bfloat16")
#: dtypes that are sent as they are; anything else is sent as bytes, uint8
DTYPES = ("float32", "float64", "int32", "int64", "uint64", "uint8")
#: kinds of `Compression`: the sum is sent in 16-bit numbers
HALVES = ("float16", "bfloat16")
#: characters of a call that an error shows
_SHOWN = 300
#: learning rates in the description of a call
_RATES = re.compile(r", learning rate [^)]*")
#: numbers of a chunk of float32: 1 MiB
CHUNK = 1 << 18


class Step(NamedTuple):
    """Optimizer step for which gradients are averaged; all ranks must agree on it."""

    #: shape of each gradient; None for one that is missing
    shapes: Sequence[Sequence[int] | None]
    #: learning rate of each parameter group; empty if unknown
    rates: Sequence[float] = ()

    @property
    def shown(self) -> str:
        """The learning rates as text, to the precision of float32."""
        return f"learning rate {', '.join(f'{rate:.6g}' for rate in self.rates)}" if self.rates else ""


class Call(NamedTuple):
    """Collective call of one rank."""

    kind: str
    dtype: str
    #: count of numbers; of one row if rows are gathered
    n_numbers: int
    #: rank that broadcasts; else 0
    root: int = 0
    #: description of the call: operation, shapes, dtype of the user's arrays; must be equal on all ranks
    words: str = ""

    def code(self) -> list[int]:
        """Return the call as three numbers, without its description."""
        return [KINDS.index(self.kind) * len(DTYPES) + DTYPES.index(self.dtype), self.n_numbers, self.root]

    @classmethod
    def of(cls, code: Iterable[int]) -> "Call":
        """Return the call with this `code`, without a description."""
        first, n_numbers, root = map(int, code)
        kind, dtype = divmod(first, len(DTYPES))
        return cls(KINDS[kind], DTYPES[dtype], n_numbers, root)


class Agreement(Frozen):
    """Sums of the heads of all ranks."""

    #: number of ranks that make a call; number of ranks that have left their program; sum of the latter's numbers, from
    #: 1
    n_active: int
    n_left: int
    left: int
    #: samples of all ranks that make a call
    n_samples: int
    #: the call without its description; None if there is none, or ranks make different calls
    call: Call | None

    @classmethod
    def of(cls, sums: NDArray[np.int64]) -> "Agreement":
        n_active, n_left, left, n_samples, *code, mark, square = sums.tolist()
        # All marks are equal if and only if the sum of squares is minimal (Cauchy-Schwarz).
        is_same = n_active > 0 and square * n_active == mark * mark
        call = Call.of([number // n_active for number in code]) if is_same else None
        return cls(n_active=n_active, n_left=n_left, left=left, n_samples=n_samples, call=call)


def head(call: Call, n_samples: int) -> NDArray[np.int64]:
    """Return the head of a rank that makes `call` with `n_samples` samples."""
    mark = zlib.crc32(repr(call).encode()) >> 8  # the sum of squares of 24 bits over thousands of ranks fits
    return np.array([1, 0, 0, n_samples, *call.code(), mark, mark * mark], np.int64)


def idle_head(leaving: int | None = None) -> NDArray[np.int64]:
    """Return the head of a rank that has joined; `leaving`: number of a rank that has left its program."""
    numbers = np.zeros(9, np.int64)
    if leaving is not None:
        numbers[1:3] = 1, leaving + 1
    return numbers


def refusal(agreement: Agreement, calls: Sequence[str]) -> str:
    """Return the error message for mismatched calls; `calls`: description from each rank, if none has left."""
    if agreement.n_left:
        which = f"rank {agreement.left - 1}" if agreement.n_left == 1 else f"{agreement.n_left} ranks"
        return (
            f"All ranks must make the same calls, or call `hvd.join()` when they have no more data. Received: {which} "
            "at the end of its program, while other ranks still train. Give every rank as many steps, or add "
            "`hvd.join()` after the training."
        )
    first = next(rank for rank, call in enumerate(calls) if call)
    other = next((rank for rank, call in enumerate(calls) if call not in ("", calls[first])), first)
    rule, remedy = (
        "calls with arrays of the same shapes and types",
        ("Build the same model on each rank, and give each rank the same callbacks."),
    )
    if _RATES.sub("", calls[first]) == _RATES.sub("", calls[other]):
        rule, remedy = (
            "steps with the same learning rate",
            (
                "Let what changes the learning rate see the mean over all ranks: put "
                "`hvd.callbacks.MetricAverageCallback()` before it, or give it `hvd.allreduce` of the loss."
            ),
        )
    return (
        f"All ranks must make the same {rule}. Received: {calls[first][:_SHOWN]} on rank {first}, "
        f"{calls[other][:_SHOWN]} on rank {other}. {remedy}"
    )


def numbers_of(shape: Sequence[int], dtype: object, name: str | None = None) -> str:
    """Return "2 x 3 numbers (float32)" for a shape and a dtype, with the name that ranks must agree on."""
    n_each = " x ".join(map(str, shape)) or "one"
    numbers = f"{n_each} number{'s' * (n_each not in ('1', 'one'))} ({dtype})"
    return f'{numbers} named "{name}"' if name else numbers


def chunks(count: int) -> list[slice]:
    """Return the parts of a vector of `count` numbers, in the order in which they are sent."""
    return [slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


# ---------------------------------------------------------------- numbers of 16 bits


def halved(vector: np.ndarray, kind: str) -> NDArray[np.uint16]:
    """Return `vector` in 16-bit numbers, rounded to nearest; `kind` is one of `HALVES`.

    float16 has 11 significant bits and a maximum of 65,504; bfloat16 has 8 bits and the range of float32.
    """
    if kind == "float16":
        with np.errstate(over="ignore"):
            return vector.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(vector), np.uint16(0x7FC0), rounded.astype(np.uint16))


def doubled(halves: NDArray[np.uint16], kind: str) -> NDArray[np.float32]:
    """Convert the result of `halved` back to float32."""
    if kind == "float16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.astype(np.uint32) << 16).view(np.float32)
