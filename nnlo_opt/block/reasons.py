"""What is told of an exception."""

from nnlo_opt.errors import NnloError


def reason_of(error: BaseException) -> str:
    """An exception in one sentence: our own as they are, others with their type."""
    text = " ".join(str(error).split())
    if isinstance(error, NnloError):
        return text
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
