"""Context of a call from Python: its errors name arguments, not options."""

from nnlo_opt.core.base.errors import NnloError
from nnlo_opt.core.base.spelling import python_spelling


class in_python(python_spelling):
    """Context, or decorator, whose errors name arguments of Python, without lines of this package before theirs."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, NnloError):
            raise error.with_traceback(None)
