"""What ranks run in test_allreduce.py: `python allreduce_functions.py NAME`, without a framework."""

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import nnlo_opt.allreduce as hvd
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.calls import Step


def calls() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
    for dtype in (np.float32, np.float64, np.int32, np.float16, np.uint8):
        values = np.arange(6, dtype=dtype).reshape(2, 3) + dtype(rank)
        for op, expected in ((hvd.Sum, sum(range(size))), (hvd.Min, 0), (hvd.Max, size - 1)):
            reduced = hvd.allreduce(values, op=op)
            assert reduced.dtype == dtype
            factor = size if op == hvd.Sum else 1
            np.testing.assert_array_equal(reduced, np.arange(6).reshape(2, 3) * factor + expected)
    assert hvd.allreduce(2 * rank) == size - 1
    assert hvd.allreduce(float(rank)) == (size - 1) / 2
    assert hvd.allreduce(rank == 0, op=hvd.Max)
    halves = np.random.default_rng(rank).normal(size=1001).astype(np.float32)
    exact = hvd.allreduce(halves)
    for compression, error in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        rounded = hvd.allreduce(halves, compression=compression)
        assert 0 < np.abs(rounded - exact).max() < error
        assert np.array_equal(hvd.broadcast(rounded, 0), rounded), "all ranks have the same bits"
    rows = hvd.allgather(np.full((rank, 2), rank, np.int64))
    assert rows[:, 1].tolist() == [number for number in range(size) for _ in range(number)]
    for root in range(size):
        assert hvd.broadcast(np.array(["abc"[rank % 3], str(rank)]), root).tolist() == ["abc"[root % 3], str(root)]


def exact() -> None:
    """Ranks have the same result, or none, whatever the numbers and their byte order."""
    rank, size = hvd.rank(), hvd.size()
    extremes = {"uint64": [2**63 + 5, 2**64 - 1], "int64": [-(2**63), 2**63 - 1], "int8": [-128, 127]}
    for dtype, numbers in extremes.items():
        values = np.array(numbers, dtype)
        np.testing.assert_array_equal(hvd.allreduce(values), values)
    with pytest.raises(ConfigurationError, match="averages integers only if") if size > 1 else nullcontext():
        hvd.allreduce(3 + (rank == 0))
    for root in range(size):
        for op, expected in ((hvd.Max, size - 1), (hvd.Min, 0)):
            found = hvd.allreduce(np.array([np.nan if rank == root else rank, rank, np.inf]), op=op)
            np.testing.assert_array_equal(found, [np.nan, expected, np.inf])
    for order in "<>":
        mixed = np.array([1.5, 2.5], "<f4" if rank else f"{order}f4")
        for found in (hvd.broadcast(mixed, 0), hvd.allreduce(mixed), hvd.allreduce(mixed, op=hvd.Min)):
            assert (found.tolist(), found.dtype) == ([1.5, 2.5], mixed.dtype)
        assert hvd.allgather(mixed).tolist() == [1.5, 2.5] * size
        assert hvd.broadcast(np.array([(1.5, 3)], [("a", f"{order}f4"), ("b", "<i2")]), 0)["a"] == 1.5
    assert hvd.allreduce(2.0, op=hvd.Product) == hvd.allreduce(2, op=hvd.Product) == 2**size
    assert f"{hvd.allreduce(0.5):.1f}" == "0.5", "a number stays one"
    assert hvd.allgather(np.zeros((2, 0))).shape == (2 * size, 0)


def like_horovod() -> None:
    """Further calls, and arguments, of scripts for Horovod."""
    rank, size = hvd.rank(), hvd.size()
    assert (hvd.mpi_built(), hvd.nccl_built()) == (True, False)
    for sums in ({"average": False}, {"op": "sum"}, {"name": False}):
        assert hvd.allreduce(1.0, **sums) == size
    defaults = {"device_dense": "", "prescale_factor": 1.0, "process_set": None, "average": True}
    assert hvd.allreduce(1.0, name="loss", **defaults) == 1
    for name, value in {"prescale_factor": 2.0, "process_set": 1, "no_such": None}.items():
        with pytest.raises(ConfigurationError, match=f"`hvd.allreduce` takes no `{name}`.* Received: {value}"):
            hvd.allreduce(1.0, **{name: value})
    grouped = hvd.grouped_allreduce([np.ones(2), np.zeros(1)], op=hvd.Sum)
    assert [array.tolist() for array in grouped] == [[size] * 2, [0]]
    hvd.barrier()
    thing = {"epoch": rank, 3: (rank, None), "rates": [0.5, float("inf")]}
    assert hvd.broadcast_object(thing if rank == 0 else {1, 2}) == {**thing, "epoch": 0, 3: (0, None)}
    assert hvd.allgather_object("r" * rank) == ["r" * number for number in range(size)]
    with pytest.raises(ConfigurationError, match=r"nothing is pickled\. Received: set"):
        hvd.allgather_object([{1, 2}])
    with pytest.raises(ConfigurationError, match=r"takes variables\. Received: none"):
        hvd.broadcast_variables([], 0)


def joined() -> None:
    """Rank r has r + 1 steps, of r + 1 samples each."""
    from nnlo_opt.allreduce import _of

    rank, size = hvd.rank(), hvd.size()
    averaging = _of("joined").calls
    for step in range(rank + 1):
        active = range(step, size)
        weights = sum(number + 1 for number in active)
        expected = sum((number + 1) * number for number in active) / weights
        vector = np.full(300_000, rank, np.float32)
        np.testing.assert_allclose(averaging.average(vector, rank + 1, Step([(300_000,)])), expected, rtol=1e-6)
        np.testing.assert_allclose(averaging.average(vector, rank + 1, Step([None]), "bfloat16"), expected, rtol=1e-2)
        chunked = averaging.average_chunks(vector, rank + 1, Step([]))
        vector *= np.float32(chunked.share)
        chunked.send_until(270_000)
        chunked.finish()
        np.testing.assert_allclose(vector, expected, rtol=1e-6)
        assert hvd.allreduce(float(rank)) == np.mean(active)
        assert hvd.allreduce(rank, op=hvd.Min) == step
        assert hvd.allreduce(np.inf, op=hvd.Min) == np.inf
        assert hvd.allreduce(2, op=hvd.Product) == 2 ** len(active)
        hvd.barrier()
        assert len(hvd.allgather(np.zeros((2, 3)))) == 2 * len(active)
        assert hvd.broadcast(rank, size - 1) == size - 1
    assert hvd.join() == size - 1
    assert hvd.allreduce(1, op=hvd.Sum) == size, "after a join all ranks take part again"


def a_forked_child() -> None:
    """The child may do nothing that needs the other ranks, and its end is nobody else's."""
    for how in ("exits", "raises"):
        if child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (3 if how == "exits" else 1)
            continue
        with pytest.raises(ConfigurationError, match=r"Horovod's session belongs to .* forked from process"):
            hvd.allreduce(1.0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        raise SystemExit(3) if how == "exits" else ValueError
    assert hvd.allreduce(1, op=hvd.Sum) == hvd.size()


def op() -> str:
    return hvd.Sum if hvd.rank() == 0 else hvd.Average


HALF = hvd.Compression.fp16
#: what rank 0, or another one, does otherwise than the others
MISTAKES: dict[str, Callable[[], object]] = {
    "different_sizes": lambda: hvd.allreduce(np.zeros(10 + hvd.rank() // 2)),
    "different_calls": lambda: (hvd.allgather if hvd.rank() == 1 else hvd.allreduce)(np.zeros((2, 5))),
    "different_shapes": lambda: hvd.allreduce(np.zeros((2, 3) if hvd.rank() == 0 else (3, 2))),
    "different_operations": lambda: hvd.allreduce(1.0, op=op()),
    "different_operations_of_gradients": lambda: hvd.allreduce(np.zeros(4, np.float32), compression=HALF, op=op()),
    "different_bytes": lambda: hvd.broadcast(np.zeros(2, np.float16 if hvd.rank() == 0 else np.int16), 0),
    "different_names": lambda: hvd.allreduce(1.0, name="loss" if hvd.rank() == 0 else "accuracy"),
    "different_types": lambda: hvd.broadcast(0.75 if hvd.rank() == 0 else 0, 0),
    "rows_of_different_types": lambda: hvd.allgather([hvd.rank() + 0.5] if hvd.rank() == 0 else [1, 2]),
    "a_wrong_root": lambda: hvd.broadcast(1.0, 7),
}


def what_is_no_number() -> None:
    for call in (hvd.allgather, lambda value: hvd.broadcast(value, 0)):
        with pytest.raises(ConfigurationError, match="Received: Python objects"):
            call({"a": 1})
    hvd.allreduce(None)


def a_rank_that_exits() -> None:
    hvd.allreduce(1.0)
    if hvd.rank() == 1:
        sys.exit(3)
    hvd.allreduce(1.0)


def a_rank_that_raises() -> None:
    if hvd.rank() == 1:
        raise ValueError("no such file")
    hvd.allreduce(1.0)


def a_rank_that_is_killed() -> None:
    hvd.allreduce(1.0)
    if hvd.rank() == 1:
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(1.0)


def no_init() -> None:
    """Not reached: `main` calls `size` before `init`."""


def main(names: list[str]) -> None:
    functions: dict[str, Any] = globals() | MISTAKES
    if names == ["no_init"]:
        hvd.size()
    hvd.init()
    hvd.init()
    for name in names:
        functions[name]()
    print(f"rank {hvd.rank()} of {hvd.size()} is through", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
