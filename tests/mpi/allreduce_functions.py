"""What ranks run in test_allreduce.py: `python allreduce_functions.py NAME`, without a framework."""

import os
import sys
from typing import Any

import numpy as np
import pytest

import nnlo_opt.allreduce as hvd
from nnlo_opt.errors import ConfigurationError


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
    assert hvd.allreduce(rank) == (size - 1) // 2
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
        np.testing.assert_allclose(averaging.average(vector, rank + 1), expected, rtol=1e-6)
        np.testing.assert_allclose(averaging.average(vector, rank + 1, kind="bfloat16"), expected, rtol=1e-2)
        chunked = averaging.average_chunks(vector, rank + 1)
        vector *= np.float32(chunked.share)
        chunked.send_until(270_000)
        chunked.finish()
        np.testing.assert_allclose(vector, expected, rtol=1e-6)
        assert hvd.allreduce(float(rank)) == np.mean(active)
        assert hvd.allreduce(rank, op=hvd.Min) == step
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
        os.close(2)
        raise SystemExit(3) if how == "exits" else ValueError
    assert hvd.allreduce(1, op=hvd.Sum) == hvd.size()


def different_sizes() -> None:
    hvd.allreduce(np.zeros(10 + hvd.rank() // 2))


def different_calls() -> None:
    (hvd.allgather if hvd.rank() == 1 else hvd.allreduce)(np.zeros((2, 5)))


def different_types() -> None:
    hvd.broadcast(0.75 if hvd.rank() == 0 else 0, 0)


def rows_of_different_types() -> None:
    hvd.allgather([hvd.rank() + 0.5] if hvd.rank() == 0 else [1, 2])


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


def a_wrong_root() -> None:
    hvd.broadcast(1.0, 7)


def no_init() -> None:
    """Not reached: `main` calls `size` before `init`."""


def main(names: list[str]) -> None:
    functions: dict[str, Any] = globals()
    if names == ["no_init"]:
        hvd.size()
    hvd.init()
    hvd.init()
    for name in names:
        functions[name]()
    print(f"rank {hvd.rank()} of {hvd.size()} is through", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
