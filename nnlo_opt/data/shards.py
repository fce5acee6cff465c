"""Shards: the samples of a fold, divided among the workers."""

from nnlo_opt.data.source import Indices
from nnlo_opt.errors import ConfigurationError


def shard(indices: Indices, n_workers: int, worker: int) -> Indices:
    """The share of `worker` (0 .. n_workers - 1) in `indices`: contiguous, in order, a view.

    The shards of all workers are `indices` again; their sizes differ by at most one. Contiguous, so that a worker reads
    as few files as possible. Raises `ConfigurationError` if there are fewer samples than workers.
    """
    if not 0 <= worker < n_workers:
        raise ValueError(f"`worker` must be from 0 to {n_workers - 1}. Received: {worker}.")
    if len(indices) < n_workers:
        raise ConfigurationError(
            f"Every worker must have at least one training sample. Received: {len(indices)} samples for {n_workers} "
            f"workers. Use fewer ranks, or smaller blocks (`--block-size`)."
        )
    start, stop = (len(indices) * edge // n_workers for edge in (worker, worker + 1))
    return indices[start:stop]
