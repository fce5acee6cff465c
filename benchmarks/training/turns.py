"""Processes that take turns of a quarter of a second: whatever slows this machine down slows all of them alike.

The speed of a shared machine drifts by a tenth within a second, and halves for milliseconds. What is measured one after
the other, seconds apart, then differs by what the machine did; in turns, all see the same of it. A process does not
know of its turns: it is stopped (SIGSTOP) but in them, and says at what times it had made how much.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

#: short beside a drift; long beside the milliseconds in which processes that run together have all been woken, and
#: caches fill: turns of 0.05 s cost two workers 1 to 3 % more than loops without communication
TURN_S = 0.25

#: when, seconds since the epoch, how much had been made since the beginning: float64 (n, 2), ascending
Stamps = NDArray[np.float64]


class Contestant:
    """Processes that run in the same turns. They are stopped from now on; use as a context manager to let them go."""

    def __init__(self, pids: Sequence[int], makers: Sequence[Callable[[], Stamps]]) -> None:
        """`makers`: the stamps so far of each that makes something, which together are measured."""
        # A number may have another owner by now, a descriptor has not.
        self._processes = [os.pidfd_open(pid) for pid in pids]
        self._makers = makers
        #: when its turns began and ended, and for how long it had run then, seconds
        self._edges_s, self._ran_s = [0.0], [0.0]
        self._signal(signal.SIGSTOP)
        #: stamps of each maker before those that the next measurement begins with
        self._n_counted = [len(stamps()) for stamps in makers]

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, *exception: object) -> None:
        self._signal(signal.SIGCONT)
        for process in self._processes:
            os.close(process)

    def take_turn(self, seconds: float = TURN_S) -> None:
        """Let them run for so long."""
        began_s = time.time()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self._edges_s += [began_s, time.time()]
        self._ran_s += [self._ran_s[-1], self._ran_s[-1] + self._edges_s[-1] - began_s]

    def made(self) -> list[Stamps]:
        """Of each maker: for how long they had run when how much had been made, from the last stamp asked for on."""
        found = []
        for i, stamps in enumerate(self._makers):
            new = stamps()[self._n_counted[i] :]
            self._n_counted[i] += max(0, len(new) - 1)
            found.append(np.column_stack([np.interp(new[:, 0], self._edges_s, self._ran_s), new[:, 1]]))
        return found

    def _signal(self, number: int) -> None:
        for process in self._processes:
            signal.pidfd_send_signal(process, number)


def take_turns(contestants: Sequence[Contestant], seconds: float) -> None:
    """Let all run for so long each, in rounds of one turn each, whose order is drawn."""
    for _ in range(round(seconds / TURN_S)):
        for contestant in random.sample(contestants, len(contestants)):
            contestant.take_turn()


def rate(made: Sequence[Stamps]) -> float:
    """What was made in a second of running, by all makers together."""
    for stamps in made:
        if len(stamps) < 2:
            raise SystemExit("Too little was made in these turns to be measured: let them take more seconds.")
    return sum(float((n[-1] - n[0]) / (t[-1] - t[0])) for t, n in (stamps.T for stamps in made))


def rate_in_step(made: Sequence[Stamps]) -> float:
    """As `rate`, had the makers waited after every stamp for the slowest, at no cost."""
    took_s = [np.diff(stamps[:, 0]) for stamps in made]
    n_steps = min(map(len, took_s))
    together_s = np.max([times[:n_steps] for times in took_s], axis=0)
    return sum(float(stamps[n_steps, 1] - stamps[0, 1]) for stamps in made) / float(together_s.sum())
