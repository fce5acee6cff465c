"""Conformance tests of update rules.

`RuleTeam` lets the halves of a rule train in turn, like the ranks of a block: by messages, in shared memory, in
synchronous rounds, below sub-masters. The tests compare trainings that must agree.
"""

import copy
import io
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import pytest

from nnlo_opt.core.block.exchange.shared_step import SharedStep
from nnlo_opt.core.block.exchange.shared_weights import SharedWeights
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.transport import Collective
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.layers import Layer, layers_of
from nnlo_opt.core.update_rules.rule import Answer, GroupHalf, Half, MasterHalf, UpdateRule, WorkerHalf
from nnlo_opt.core.update_rules.staleness import StalenessStatistics
from nnlo_opt.core.update_rules.vectors import FloatVector

#: layers of the model; with shared memory and this many workers, its weights form three blocks that cut layers
LAYERS = layers_of([("hidden/w", (120, 90)), ("hidden/b", (90,)), ("output/w", (90, 40)), ("output/b", (40,))])
N_WEIGHTS, N_WORKERS = LAYERS[-1].part.stop, 6
#: samples of the batch of each worker
_N_SAMPLES = (4, 3, 4, 2, 4, 1)
#: updates of an epoch
_N_UPDATES = 12
#: ways to train: asynchronous, asynchronous with overlap, in synchronous rounds, below two sub-masters, every step
#: together
WAYS = ("turns", "ahead", "rounds", "tree", "together")


def gradient_at(weights: FloatVector, worker: int, batch: int) -> FloatVector:
    """Return the gradient of `loss_of` at `weights` (n,), with batch noise, float32 (n,)."""
    return _curvature(len(weights)) * (weights - np.float32(1)) + _noise(worker, batch, len(weights))


@lru_cache
def _curvature(n_weights: int) -> FloatVector:
    return (0.5 + np.arange(n_weights) % 4 / 6).astype(np.float32)


@lru_cache(512)
def _noise(worker: int, batch: int, n_weights: int) -> FloatVector:
    return np.random.default_rng([worker, batch]).normal(0, 0.1, n_weights).astype(np.float32)


def loss_of(weights: FloatVector) -> float:
    """Return a loss with minimum 0 where all weights are 1."""
    return float(np.mean(_curvature(len(weights)) * (weights.astype(np.float64) - 1.0) ** 2) / 2)


class RuleTeam:
    """A master and its workers, in one process.

    Args:
        rule: rule under test.
        options: training options.
        way: one of `WAYS`.
        n_workers: number of workers, at most `N_WORKERS`; at least 2 in a tree.
        layers: layers of the model.
        overwrites: True to overwrite vectors with NaN as soon as the framework may reuse their memory.
    """

    def __init__(
        self,
        rule: UpdateRule,
        options: TrainingOptions,
        way: str = "turns",
        n_workers: int = N_WORKERS,
        layers: Sequence[Layer] = LAYERS,
        *,
        overwrites: bool = False,
    ) -> None:
        self.rule, self.options, self.way, self.n_workers = rule, options, way, n_workers
        self._overwrites = overwrites
        n_weights = self.n_weights = layers[-1].part.stop
        self._groups = [range(0, n_workers // 2), range(n_workers // 2, n_workers)] if way == "tree" else []
        self.master = rule.master_half(options, n_weights, len(self._groups) or n_workers)
        self.groups = [rule.group_half(options, n_weights, len(workers)) for workers in self._groups]
        self.workers = [rule.worker_half(options, n_weights) for _ in range(n_workers)]
        for half in self.halves:
            half.take_layers(layers)
        #: central weights (n_weights,)
        self.central = np.random.default_rng(0).normal(0, 1, n_weights).astype(np.float32)
        self._batches, self._bases = [0] * n_workers, [0] * n_workers
        #: batches trained by each worker since its last update
        self._ahead = [0] * n_workers
        self._version = self._n_turns = 0
        #: each worker's handle of the central weights in shared memory; [] without shared memory
        self._shared: list[SharedWeights] = []
        self._has_begun = self._remembers = False

    @property
    def halves(self) -> list[Half]:
        return [self.master, *self.groups, *self.workers]

    # ------------------------------------------------------------ training

    def epoch(self, n_updates: int = _N_UPDATES) -> "RuleTeam":
        """Train an epoch of `n_updates` updates."""
        keeps_own = self.master.answers == Answer.DIFFERENCE and (self._has_begun or self._remembers)
        self._has_begun = True
        if not keeps_own:
            for half in (*self.groups, *self.workers):
                self._adopt(half, Answer.WEIGHTS, self.central.copy())
        train = {"rounds": self._round, "tree": self._group_round, "together": self._together}.get(self.way, self._turn)
        for _ in range(n_updates):
            train()
        for worker, half in enumerate(self.workers):
            if self._ahead[worker] and half.drains:
                self.master.apply(self.central, self._update_of(worker), 1.0)
        if self.way == "together":  # one message to the master per epoch
            self.master.apply_round(self.central, [(_N_SAMPLES[0], self._update_of(0))])
        return self

    def _turn(self) -> None:
        worker = (5 * self._n_turns + self._n_turns // 3) % self.n_workers
        self._n_turns += 1
        self._train(worker)
        if self._shared:
            return self._exchange(worker)
        update, half = self._update_of(worker), self.workers[worker]
        if self.way == "ahead":
            self._train(worker, 1)
            self._ahead[worker] = 1
        weight = self.options.staleness_policy.weight(self._version - self._bases[worker])
        if weight:
            self._version += 1
            self.master.apply(self.central, update, weight)
        self._bases[worker] = self._version
        self._answer(half, update)
        return None

    def _round(self) -> None:
        updates = [self._update_of(self._train(worker)) for worker in range(self.n_workers)]
        self.master.apply_round(self.central, [*zip(_N_SAMPLES, updates, strict=False)])
        for half, update in zip(self.workers, updates, strict=True):
            self._answer(half, update)

    def _group_round(self) -> None:
        group, workers = self.groups[self._n_turns % 2], self._groups[self._n_turns % 2]
        self._n_turns += 1
        updates = [self._update_of(self._train(worker)) for worker in workers]
        made = group.combine([(_N_SAMPLES[w], update) for w, update in zip(workers, updates, strict=True)])
        received = self._checked(made, "`combine` of a sub-master").copy()
        self.master.apply(self.central, received, 1.0)
        is_own = group.answers == Answer.DIFFERENCE
        for worker, update in zip(workers, updates, strict=True):
            self._answer(self.workers[worker], update if is_own else received.copy())
        self._answer(group, received)

    def _together(self) -> None:
        gradients = [gradient_at(half.point(), w, self._batches[w]) for w, half in enumerate(self.workers)]
        mean = np.average(gradients, axis=0, weights=_N_SAMPLES[: self.n_workers]).astype(np.float32)
        for worker, half in enumerate(self.workers):
            half.gradient[:] = mean
            half.step(sum(_N_SAMPLES[: self.n_workers]))
            self._batches[worker] += 1

    def _train(self, worker: int, n_batches: int = 0) -> int:
        """Train the batches of a sync period; return `worker`."""
        half = self.workers[worker]
        for _ in range(n_batches or self.options.sync_every - self._ahead[worker]):
            before = self._checked(half.point(), "`point` of a worker").copy()
            half.gradient[:] = gradient_at(before, worker, self._batches[worker])
            moved = half.step(_N_SAMPLES[worker])
            stays = np.array_equal(half.point(), before, equal_nan=True)
            assert moved or stays, f"`step` has moved `point`, and returned {moved!r}"
            self._batches[worker] += 1
        return worker

    def _update_of(self, worker: int) -> FloatVector:
        """Return a copy of a worker's update, as a message would contain it."""
        self._ahead[worker] = 0
        return self._checked(self.workers[worker].finish(), "`finish` of a worker").copy()

    def _answer(self, half: WorkerHalf | GroupHalf, update: FloatVector) -> None:
        kind = self.master.answers
        self._adopt(half, kind, self.central.copy() if kind == Answer.WEIGHTS else update)
        if self._overwrites:
            update[:] = np.nan

    def _adopt(self, half: Any, kind: Answer, answer: FloatVector) -> None:
        if kind == Answer.NOTHING:
            return
        before = answer.copy()
        half.adopt(kind, answer)
        _check_same(answer, before, "the answer before and after `adopt`")
        if self._overwrites:
            answer[:] = np.nan

    def _checked(self, vector: Any, what: str) -> FloatVector:
        received = (type(vector), getattr(vector, "dtype", None), np.shape(vector))
        assert received == (np.ndarray, np.float32, (self.n_weights,)), f"{what} is {received}"
        return np.asarray(vector)

    # ------------------------------------------------------------ shared memory

    def share(self, *, is_alone: bool = False) -> "RuleTeam":
        """Let the workers update the central weights directly from now on; `is_alone`: there is only one worker."""
        network = LoopbackNetwork(1 + self.n_workers, shares=True)
        mine = SharedWeights.of_master(network.end(0), self.master, self.central, self.n_weights, self.n_workers)
        assert mine is not None
        mine.begin(self._version, 0, 1 << 60, StalenessStatistics())
        self._of_master, self.central = mine, mine.weights
        for worker, half in enumerate(self.workers):
            own = self.rule.master_half(self.options, self.n_weights, self.n_workers)
            own.take_layers(LAYERS)
            memory = network.end(1 + worker).join(0, mine.place)
            sizes, policy = (self.n_weights, 0), self.options.staleness_policy
            self._shared.append(SharedWeights(memory, own, sizes, self.n_workers, policy))
            if is_alone:
                half.own(self._shared[-1].weights)
        return self

    def _exchange(self, worker: int) -> None:
        half, shared = self.workers[worker], self._shared[worker]
        update = self._checked(half.finish(), "`finish` of a worker")
        done = shared.exchange(update, half.answer, _N_SAMPLES[worker], self._bases[worker])
        half.adopt(shared.answers, half.answer)
        self._bases[worker] = self._version = done.version

    def settle(self) -> MasterHalf:
        """Return the master's half after all updates."""
        return self._of_master.settle() if self._shared else self.master

    # ------------------------------------------------------------ checkpoints

    def saved(self) -> list[dict[str, Any]]:
        """Return the state of each half, as in a checkpoint."""
        return [_through_a_file(half.state()) for half in (self.settle(), *self.groups, *self.workers)]

    def resume(self, other: "RuleTeam", states: Sequence[Mapping[str, Any]]) -> "RuleTeam":
        """Continue from `other` with these states; new workers have none."""
        np.copyto(self.central, other.central)
        self._version, self._n_turns = other._version, other._n_turns
        self._batches, self._ahead = (
            [*those, *these][: self.n_workers]
            for those, these in ((other._batches, self._batches), (other._ahead, self._ahead))
        )
        self._bases = [self._version] * self.n_workers
        of_workers = states[1 + len(other.groups) :]
        self._remembers = all(of_workers) and len(of_workers) == self.n_workers
        self.master.load_state(states[0])
        halves = [*self.groups, *self.workers]
        for half, state in zip(halves, states[1:], strict=False):
            if state:
                half.load_state(state)
        return self


def _through_a_file(state: Mapping[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    wrong = {
        name: value
        for name, value in state.items()
        if not isinstance(value, str | int | float) and np.asarray(value).dtype.kind not in "fiub"
    }
    assert not wrong, f"`state` has numbers, text and vectors. Received: {wrong}"
    scalars = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
    np.savez(file, allow_pickle=False, **{name: v for name, v in state.items() if name not in scalars})
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        return {**json.loads(json.dumps(scalars)), **arrays}


def _check_same(one: FloatVector, other: FloatVector, what: str, rtol: float = 0.0) -> None:
    differ = np.flatnonzero(~np.isclose(one, other, rtol=rtol, atol=0.0, equal_nan=True))
    if len(differ):
        at = differ[0]
        raise AssertionError(
            f"{what} must be the same: {len(differ)} of {len(one)} numbers differ, the first is number {at}, "
            f"{one[at]!r} and {other[at]!r}"
        )


class _Alive(Collective):
    """A collective group in which no rank dies."""

    def check(self) -> None:
        """Do nothing: no rank has died."""

    def sum_in_place(self, vector: np.ndarray) -> None:
        raise NotImplementedError


class UpdateRuleConformance:
    """Test class to inherit from for a custom update rule; define `make`.

    >>> from nnlo_opt.core.update_rules.downpour import Downpour
    >>> class TestDownpour(UpdateRuleConformance):
    ...     make = Downpour
    ...     options = {"learning_rate": 0.05}

    The rule's traits (`makes_local_steps`, `may_be_synchronous`, ...) and methods decide which ways to train are
    tested.
    """

    #: training options by their Python names, such as `learning_rate` and `sync_every`
    options: ClassVar[Mapping[str, Any]] = {}
    #: set to False for a rule without a learning rate, or that ignores schedules
    follows_schedule: ClassVar[bool] = True
    #: relative tolerance between messages and shared memory, for sums whose order depends on the block
    rtol: ClassVar[float] = 0.0

    @staticmethod
    def make() -> UpdateRule:
        """Return the rule under test."""
        raise NotImplementedError("A suite must have `make`, as its docstring shows.")

    def team(self, way: str = "turns", n_workers: int = N_WORKERS, **more: Any) -> RuleTeam:
        """Return a new team that trains in a `way`; skips the test if the rule does not support it."""
        rule = more.pop("rule", None) or self.make()
        layers, overwrites = more.pop("layers", LAYERS), more.pop("overwrites", False)
        is_missing = {
            "turns": rule.averages_every_batch,
            "ahead": rule.averages_every_batch,
            "rounds": rule.averages_every_batch or not rule.may_be_synchronous,
            "tree": rule.averages_every_batch or type(rule).group_half is UpdateRule.group_half,
            "together": not rule.averages_every_batch,
        }
        if is_missing[way]:
            pytest.skip("the rule does not train so")
        options = self.training(rule, **more, synchronous=way == "rounds")
        return RuleTeam(rule, options, way, n_workers, layers, overwrites=overwrites)

    def training(self, rule: UpdateRule, **more: Any) -> TrainingOptions:
        """Return the options of a training by `rule`."""
        options = TrainingOptions.of({**copy.deepcopy({**self.options}), **more})
        of_rule = {option.name: option.default for option in rule.options}
        options = replace(options, of_rules={**of_rule, **options.of_rules})
        rule.check(options)
        return options

    def any_team(self, **more: Any) -> RuleTeam:
        """Return a new team that trains in the first way that the rule supports."""
        return self.team("together" if self.make().averages_every_batch else "turns", **more)

    # ------------------------------------------------------------ a training

    @pytest.mark.parametrize("n_weights", [1, 5, N_WEIGHTS])
    def test_vectors_are_float32_and_as_long_as_the_model(self, n_weights: int) -> None:
        team = self.any_team(layers=layers_of([("w", (n_weights,))])).epoch()
        assert 0 < team.rule.base_learning_rate(team.options) < math.inf
        vectors = {f"vectors[{i}]": vector for i, vector in enumerate(team.master.vectors)}
        for i, half in enumerate(team.halves):
            vectors |= {f"memory of half {i}, {name!r}": vector for name, vector in half.memory.items()}
        for i, worker in enumerate(team.workers):
            vectors |= {f"{name} of worker {i}": getattr(worker, name) for name in ("weights", "gradient", "answer")}
        received = {name: (str(vector.dtype), vector.shape) for name, vector in vectors.items()}
        wrong = {name: kind for name, kind in received.items() if kind != ("float32", (n_weights,))}
        assert not wrong, f"vectors must be float32 ({n_weights},)"

    @pytest.mark.parametrize("way", WAYS)
    def test_weights_stay_finite_and_the_loss_falls(self, way: str) -> None:
        team = self.team(way)
        first = loss_of(team.central)
        for _ in range(5):
            team.epoch()
        assert np.isfinite(team.central).all(), f"weights after 5 epochs: {team.central}"
        assert loss_of(team.central) < first, "the loss after 5 epochs and before; if it diverges, lower the rate"

    @pytest.mark.parametrize("way", WAYS)
    def test_the_same_training_has_the_same_result(self, way: str) -> None:
        one, other = (self.team(way).epoch().epoch() for _ in range(2))
        _check_same(one.central, other.central, "the weights of the same training twice")

    @pytest.mark.parametrize("way", WAYS)
    def test_nothing_that_is_passed_in_is_kept(self, way: str) -> None:
        one, other = self.team(way).epoch(), self.team(way, overwrites=True).epoch()
        _check_same(one.central, other.central, "weights, and those of a training in which all that was passed is NaN,")

    def test_options_are_left_alone(self) -> None:
        team = self.any_team().epoch()
        assert team.options.to_json() == self.training(team.rule).to_json()

    @pytest.mark.parametrize("way", WAYS)
    def test_trainings_by_one_rule_share_nothing(self, way: str) -> None:
        alone, rule = self.team(way).epoch().epoch(), self.make()
        one, other = self.team(way, rule=rule), self.team(way, rule=rule)
        other.central += 1.0
        for team in (one, other, one):
            team.epoch()
        _check_same(one.central, alone.central, "weights with and without another training by the same rule")

    def test_a_schedule_scales_the_learning_rate_of_the_options(self) -> None:
        def trained(*factors: float) -> FloatVector:
            team = self.any_team()
            for factor in factors:
                for half in team.halves:
                    half.scale_learning_rate(factor)
            return team.epoch().central

        plain, half = trained(), trained(0.5)
        _check_same(trained(1.0), plain, "weights at 1.0 of the learning rate and without a schedule")
        _check_same(trained(0.25, 0.5), half, "weights at 0.5 of the learning rate, and at 0.5 after 0.25,")
        assert not self.follows_schedule or not np.array_equal(half, plain), "half the learning rate changes no weight"

    def test_every_batch_of_a_period_counts(self) -> None:
        rule = self.make()
        if rule.averages_every_batch or not rule.makes_local_steps:
            pytest.skip("the workers take no steps by themselves")
        updates = list[FloatVector]()
        for factor in (1.0, 2.0):
            team = self.team(n_workers=1, sync_every=3)
            worker = team.workers[0]
            worker.adopt(Answer.WEIGHTS, team.central.copy())
            for batch, scale in enumerate((factor, 1.0, 1.0)):
                worker.gradient[:] = scale * gradient_at(team.central, 0, batch)
                worker.step(4)
            updates.append(worker.finish().copy())
        assert not np.array_equal(updates[0], updates[1]), "twice the first gradient of three changes no update"

    # ------------------------------------------------------------ messages and shared memory

    @pytest.mark.parametrize("staleness", ["none", "scale", "drop:4"])
    @pytest.mark.parametrize("n_before", [0, 5])
    def test_messages_and_shared_memory_agree(self, staleness: str, n_before: int) -> None:
        """Check blocks of the weights; after updates by messages, the rule's memory moves to shared memory."""
        if staleness != "none" and not self.make().weighs_staleness:
            pytest.skip("the rule does not weigh updates")
        by_messages, in_memory = (self.team(staleness=staleness).epoch(n_before) for _ in range(2))
        in_memory.share().epoch()
        by_messages.epoch()
        _check_same(in_memory.central, by_messages.central, "weights in shared memory and by messages", self.rtol)
        for here, there in zip(in_memory.workers, by_messages.workers, strict=True):
            _check_same(here.weights, there.weights, "a worker's weights in shared memory and by messages", self.rtol)
        vectors = zip(in_memory.settle().vectors, by_messages.master.vectors, strict=True)
        for here_v, there_v in vectors:
            _check_same(here_v, there_v, "a master's memory in shared memory and by messages", self.rtol)
        assert in_memory.settle().n_steps == by_messages.master.n_steps

    def test_blocks_cover_the_weights_once_and_cut_no_layer_of_a_rule_by_layer(self) -> None:
        master = self.any_team().master
        edges = [(block.start, block.stop) for block in master.blocks(N_WEIGHTS, 3)]
        assert [0, *(stop for _, stop in edges)] == [*(start for start, _ in edges), N_WEIGHTS]
        if master.by_layer:
            cut = [layer.name for layer in LAYERS for _, stop in edges if layer.part.start < stop < layer.part.stop]
            assert not cut, f"blocks {edges} cut layers"

    def test_a_worker_alone_agrees_too(self) -> None:
        by_messages = self.team(n_workers=1).epoch().epoch()
        in_memory = self.team(n_workers=1).share(is_alone=True).epoch().epoch()
        _check_same(
            in_memory.central, by_messages.central, "weights of one worker in memory and by messages", self.rtol
        )

    def test_weights_of_a_worker_may_move_to_memory_of_its_group(self) -> None:
        plain, moved = self.any_team().epoch(), self.any_team().epoch()
        for half in moved.workers:
            before, memory = half.weights.copy(), np.full(N_WEIGHTS, np.nan, np.float32)
            half.live_in(memory)
            assert half.weights is memory, "`weights` after `live_in` are not the memory"
            _check_same(memory, before, "weights in the memory and before")
        _check_same(moved.epoch().central, plain.epoch().central, "weights after `live_in` and without")

    def test_a_step_in_parts_is_the_whole_step(self) -> None:
        if not self.make().parts_steps:
            pytest.skip("each rank makes whole steps")
        whole, parts = self.team("together", n_workers=2), self.team("together", n_workers=2)
        network, n_ranks = LoopbackNetwork(2, shares=True), 2
        size = SharedStep.n_bytes(parts.rule.optimizer(parts.options, 1), N_WEIGHTS, n_ranks)
        memory = network.end(0).share(size)

        def share(rank: int) -> SharedStep:
            assert memory is not None
            return parts.workers[rank].share(lambda own: SharedStep(memory, own, N_WEIGHTS, rank, n_ranks, _Alive()))

        steps = [share(rank) for rank in range(n_ranks)]
        for team in (whole, parts):
            for half in team.workers:
                half.adopt(Answer.WEIGHTS, team.central.copy())

        def step(rank: int, gradient: FloatVector) -> None:
            steps[rank].gradient[:] = gradient
            steps[rank].average([4])
            parts.workers[rank].step(8)

        for batch in range(3):
            gradient = gradient_at(whole.workers[0].weights, 0, batch)
            for half in whole.workers:
                half.gradient[:] = gradient
                half.step(8)
            _at_once([partial(step, rank, gradient) for rank in range(n_ranks)])
        _check_same(parts.workers[1].weights, whole.workers[1].weights, "weights after steps in parts and whole")

    # ------------------------------------------------------------ ends and beginnings

    @pytest.mark.parametrize("way", WAYS)
    def test_a_resumed_training_goes_on_bit_for_bit(self, way: str) -> None:
        undisturbed, stopped = self.team(way).epoch().epoch(), self.team(way).epoch()
        resumed = self.team(way).resume(stopped, stopped.saved()).epoch()
        _check_same(resumed.central, undisturbed.central, "weights of a resumed and of an undisturbed training")

    def test_a_resumed_training_in_shared_memory_goes_on_bit_for_bit(self) -> None:
        undisturbed, stopped = self.team().share().epoch().epoch(), self.team().share().epoch()
        resumed = self.team().resume(stopped, stopped.saved()).share().epoch()
        _check_same(resumed.central, undisturbed.central, "weights of a resumed and of an undisturbed training")

    @pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)], ids=["workers leave", "workers join"])
    def test_workers_may_leave_and_join(self, before: int, after: int) -> None:
        if self.make().averages_every_batch:
            pytest.skip("the workers hold what the master does not know")
        team = self.team(n_workers=before).epoch()
        states = team.saved()
        by_messages, in_memory = (self.team(n_workers=after).resume(team, states) for _ in range(2))
        kept = by_messages.saved()[0]
        for name, value in states[0].items():
            assert name in kept, f"the master's state lacks {name!r} with {after} workers instead of {before}"
            if isinstance(value, np.ndarray):
                _check_same(kept[name], value, f"{name!r} of the master with {before} and {after} workers")
        by_messages.epoch()
        in_memory.share().epoch()
        assert np.isfinite(by_messages.central).all(), f"weights with {after} workers: {by_messages.central}"
        _check_same(in_memory.central, by_messages.central, "weights in shared memory and by messages", self.rtol)


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Run all calls concurrently, one thread each."""
    errors: list[BaseException] = []

    def make(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=[call], daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads), "a rank waits for another one"
