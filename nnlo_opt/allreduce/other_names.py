"""Horovod's names with a constant result here, and those that do not exist here."""

_NO = ("gloo_built", "gloo_enabled", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "sycl_built")
#: queries of how Horovod was built -> result for plain MPI
ANSWERS = {"mpi_built": True, "mpi_enabled": True, "mpi_threads_supported": False, **dict.fromkeys(_NO, False)}

#: name that does not exist here -> what to use instead
_INSTEAD = {
    "HorovodInternalError HostsUpdatedInterrupt elastic": "start the script again from a checkpoint",
    "Adasum DistributedAdasumOptimizer": "use `op=hvd.Average`",
    "ProcessSet add_process_set global_process_set process_set_included_op remove_process_set": "start a job for each",
    "allgather_async alltoall alltoall_async grouped_allgather grouped_allgather_async": "use `hvd.allgather`",
    "allreduce_ allreduce_async allreduce_async_ reducescatter reducescatter_async sparse_allreduce_async "
    "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter "
    "grouped_reducescatter_async": "use `hvd.allreduce` or `hvd.grouped_allreduce`",
    "poll synchronize": "use the calls without `_async`, which return when the result is there",
    "broadcast_ broadcast_async broadcast_async_": "use `hvd.broadcast`",
    "BroadcastGlobalVariablesHook broadcast_global_variables": "use `hvd.broadcast_variables`",
    "broadcast_object_fn": "use `hvd.broadcast_object`",
    "SyncBatchNorm SyncBatchNormalization": "use the framework's own layer, which sees the batch of each rank",
    "start_timeline stop_timeline": "use the framework's profiler",
    "cross_rank cross_size is_homogeneous": "use `hvd.local_rank()` and `hvd.local_size()`",
    "local_rank_op local_size_op rank_op size_op": "use `hvd.rank()`, `hvd.size()` and the like",
    "PartialDistributedGradientTape PartialDistributedOptimizer": "use those that average all gradients",
    "load_model": "use `keras.models.load_model`, and wrap its optimizer in `hvd.DistributedOptimizer`",
    "BestModelCheckpoint": "use `keras.callbacks.ModelCheckpoint` with `save_best_only=True`",
    "run": "start the script by `mpirun` or `horovodrun`",
}
INSTEAD = {name: remedy for names, remedy in _INSTEAD.items() for name in names.split()}


def absence(module: str, name: str) -> str:
    """Return the error message for an unknown attribute of a module."""
    if name in INSTEAD:
        return f"Horovod's `{name}` does not exist in {module}: {INSTEAD[name]}."
    return f"module {module!r} has no attribute {name!r}"
