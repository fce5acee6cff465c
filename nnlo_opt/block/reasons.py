"""What is told of an exception."""

import socket
import traceback

from nnlo_opt.comm import messages as msg
from nnlo_opt.errors import NnloError


def reason_of(error: BaseException) -> str:
    """An exception in one sentence: our own as they are, others with their type."""
    text = " ".join(str(error).split())
    if isinstance(error, NnloError):
        return text
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def worker_failed(assignment: int | None, error: BaseException, world_rank: int) -> msg.WorkerFailed:
    """What a rank that trains tells of `error`."""
    return msg.WorkerFailed(
        assignment=-1 if assignment is None else assignment,
        reason=reason_of(error),
        traceback="".join(traceback.format_exception(error)),
        world_rank=world_rank,
        host=socket.gethostname(),
    )
