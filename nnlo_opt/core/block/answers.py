"""Reports failures of a trial, and keeps results until they are recorded."""

import logging
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

from nnlo_opt.core.base.errors import BrokenProcessError, LostAttemptError, NnloError, ProtocolError
from nnlo_opt.core.base.logs import WHOLE, log_path
from nnlo_opt.core.base.user_code import of_user, reason_of, shortened
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import RanksLost
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.trial import FoldResult, UnrecordedFold

logger = logging.getLogger(__name__)

#: exceptions that are not failures of a trial; everything else raised by user code is
PASSED_ON = (KeyboardInterrupt, RanksLost, ProtocolError, BrokenProcessError)
#: longest traceback in the journal, in characters
LONGEST_TRACEBACK = 20_000


def fold_failed(assignment: int | None, error: BaseException, world_rank: int) -> msg.FoldFailed:
    """Return the message that `error` has ended an assignment; log the whole traceback."""
    whole = "".join(traceback.format_exception(error.with_traceback(of_user(error))))
    WHOLE.info("assignment %s has failed: %s", assignment, whole)
    reason = reason_of(error)
    is_of_user = not isinstance(error, NnloError) or error.__cause__ is not None
    if is_of_user and WHOLE.isEnabledFor(logging.INFO):
        reason = f"{reason.rstrip('.')}; traceback in `{log_path(Path(), world_rank)}`"
    return msg.FoldFailed(
        assignment=-1 if assignment is None else assignment,
        reason=reason,
        traceback=shortened(whole, LONGEST_TRACEBACK),
        world_rank=world_rank,
        host=socket.gethostname(),
        by_chance=isinstance(error, LostAttemptError),
    )


class failures_to:
    """Context manager that passes a failure of the trial to `take` instead of raising it.

    A failure of the trial is any exception except those in `PASSED_ON`, including a user's `sys.exit`, which must not
    end the search. Reusable.
    """

    # Without `contextmanager`, which takes three times as long, and more after a computation.
    def __init__(self, take: Callable[[BaseException], None]) -> None:
        self._take = take

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, PASSED_ON):
            return False
        self._take(error)
        return True


class Results:
    """Results sent but not yet recorded by the coordinator; written to files if the coordinator dies."""

    def __init__(self) -> None:
        #: assignment -> result, until FoldRecorded comes
        self._folds: dict[int, UnrecordedFold] = {}

    def add(self, order: msg.RunFold, finished: msg.FoldFinished) -> None:
        """Add the result of `order` when it is sent to the coordinator."""
        self._folds[order.assignment] = UnrecordedFold(
            assignment=order.assignment,
            trial=order.trial,
            fold=order.fold,
            attempt=order.attempt,
            point=order.point,
            result=FoldResult.of(finished),
            reason=finished.reason,
        )

    def forget(self, assignment: int) -> None:
        """Forget the result of an assignment once it is in the journal."""
        self._folds.pop(assignment, None)

    def keep(self, run: Path) -> None:
        """Write all results to the run directory `run`, because the coordinator has died."""
        for fold in self._folds.values():
            try:
                unrecorded.keep(run, fold)
            except OSError as error:
                logger.warning("assignment %d is finished, and will be trained again: %s", fold.assignment, error)
