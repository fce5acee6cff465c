"""A sub-master's part of each update rule: what a round of its workers' updates becomes, and what they are answered.

Inside a group the workers are synchronous; between groups `--synchronous` decides, as it does between workers without
sub-masters. (Kurth et al., "Deep Learning at 15PF", arXiv:1708.05256, train such groups with a parameter server.) With
n_i samples in the update u_i of worker i:

    downpour  u = sum_i(n_i u_i) / sum_i(n_i); so in synchronous training the tree does what one master does
    gem       u = sum_i(u_i), as the master adds them: the workers have matched them to each other already
    easgd     the group has a centre of its own, on which its workers pull in a round of (2) of `easgd` with
              alpha = beta / workers of the group; then it pulls on the central weights as a worker does, with
              alpha = beta / groups: elastic averaging in a tree (Zhang, arXiv:1605.02216, chapter 6)

All vectors are float32 (n_weights,).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from nnlo_opt.block.central import CentralElastic
from nnlo_opt.errors import ProtocolError
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.update_rules import downpour, easgd
from nnlo_opt.vectors import aligned_empty


class GroupRule(Protocol):
    """One update rule at a sub-master, for one assignment."""

    #: what its workers adopt: "weights", those that come from the top master, or "difference", what `combine` has made
    #: of their updates
    answers: str

    def combine(self, updates: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
        """The update of the group, valid until the next one, from (n_samples, update) of each worker in order.

        Each `update` may become the answer to it, in place.
        """
        ...

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        """Take in the top master's answer to `combine`, or the weights to begin with."""
        ...

    def state(self) -> dict[str, Any]:
        """Vectors that are nowhere else, for a checkpoint at a fence; empty without any."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` of the same rule returned."""
        ...


class GroupMean:
    """Downpour: the average over the samples of the group."""

    answers = "weights"

    def __init__(self, n_weights: int) -> None:
        self._update = aligned_empty(n_weights)

    def combine(self, updates: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
        downpour.combine(updates, self._update)
        return self._update

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        """Nothing is kept here: the workers adopt it."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        raise ProtocolError(f"This update rule has no state at a sub-master. Received: {sorted(state)}.")


class GroupSum(GroupMean):
    """GEM: the sum, as the master would add one after another."""

    def combine(self, updates: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
        with np.errstate(all="ignore"):
            np.copyto(self._update, updates[0][1])
            for _, update in updates[1:]:
                self._update += update
        return self._update


class GroupCentre:
    """EASGD: a centre between the central weights and those of the workers, tied to both."""

    answers = "difference"

    def __init__(self, options: TrainingOptions, n_weights: int, n_workers: int) -> None:
        self._rule = CentralElastic(options, n_workers)
        self._centre = aligned_empty(n_weights)

    def combine(self, updates: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
        self._rule.apply_round(self._centre, updates)
        return self._centre

    def adopt(self, kind: str, answer: np.ndarray) -> None:
        if kind == "difference":
            easgd.adopt(self._centre, answer)
        else:
            np.copyto(self._centre, answer)

    def state(self) -> dict[str, Any]:
        return {"centre": self._centre}

    def load_state(self, state: Mapping[str, Any]) -> None:
        np.copyto(self._centre, state["centre"])


def group_rule(options: TrainingOptions, n_weights: int, n_workers: int) -> GroupRule:
    """The rule that `options` ask for, in a group of `n_workers`; ProtocolError for one without a master."""
    match options.mode:
        case "downpour":
            return GroupMean(n_weights)
        case "gem":
            return GroupSum(n_weights)
        case "easgd":
            return GroupCentre(options, n_weights, n_workers)
    raise ProtocolError(f"`--mode {options.mode}` has no sub-masters.")
