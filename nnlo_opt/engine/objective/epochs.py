"""Numbering of epochs: a trial's code may count from 0, the journal counts from 1."""

import reprlib
from numbers import Integral
from typing import Any

from nnlo_opt.core.base.errors import MisuseError
from nnlo_opt.core.base.records import MAX_INTEGER

#: unknown: the trial has neither reported nor saved
UNKNOWN = -1


class EpochCount:
    """How a trial's code counts epochs, known from its first report or save; the same for all attempts.

    Args:
        first: number of its first epoch, 1 or 0; `UNKNOWN` before.
    """

    def __init__(self, first: int = UNKNOWN) -> None:
        self._first = first

    @property
    def is_from_0(self) -> bool:
        """True if the code counts from 0."""
        return self._first == 0

    def number(self, epoch: Any) -> int:
        """Return the journal's number of a reported or saved epoch; TrialError if it is invalid."""
        own = whole_epoch(epoch)
        if self._first == UNKNOWN:
            self._first = int(own > 0)
        if own < self._first:
            raise MisuseError(
                "a trial whose first report was not for epoch 0 must count its epochs from 1; received: 0"
            )
        return own + self.is_from_0


def whole_epoch(epoch: Any) -> int:
    """Return an epoch number from user code as int; TrialError unless it is whole and at least 0."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not 0 <= int(epoch) < MAX_INTEGER:
        raise MisuseError(
            f"the epochs of reports must be whole numbers from 1; received: {reprlib.repr(epoch)}; write "
            "`report(epoch, value)`, and count epochs by `range(1, n + 1)` or by `range(n)`"
        )
    return int(epoch)
