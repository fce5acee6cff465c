"""Interruption of a search in a user's own process: Ctrl-C, or the button of a notebook."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


class Interruption:
    """Wish of the user that a search ends with what it has; a second one raises KeyboardInterrupt.

    The first one raises KeyboardInterrupt only in code of the user: anywhere else it could leave half a line in the
    journal. The search looks for it instead.
    """

    def __init__(self) -> None:
        #: number of wishes so far
        self.n_asked = 0
        self._is_in_call = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take Ctrl-C within the block. Only the main thread can, and only if nobody else takes it."""
        is_ours = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGINT)
        if not is_ours or before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        self.n_asked += 1
        if self._is_in_call or self.n_asked > 1:
            raise KeyboardInterrupt

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let an interruption end the block, which is a call of the user's code."""
        self._is_in_call = True
        try:
            yield
        except KeyboardInterrupt:
            self.n_asked = max(1, self.n_asked)  # the code may have raised it by itself
            raise
        finally:
            self._is_in_call = False

    def deferred(self, function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        """Return a function of this package for the user's code, which an interruption ends when it has returned."""

        def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Returned:
            n_before, self._is_in_call = self.n_asked, False
            try:
                returned = function(*arguments, **named)
            finally:
                self._is_in_call = True
            if self.n_asked > n_before:
                raise KeyboardInterrupt
            return returned

        return call
