"""The steps of ranks that average and apply in shared memory, each a thread here, against closed forms."""

import threading

import numpy as np
import pytest

from nnlo_opt.core.block.exchange.shared_step import SharedStep
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.transport import Collective, RanksLost
from nnlo_opt.core.update_rules.clipping import CLIPPINGS, Clipping
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.vectors import BLOCK


class Alive(Collective):
    """A group none of which has died."""

    def check(self):
        """Nobody has."""


class Bereft(Collective):
    """A group that has lost a rank."""

    def check(self):
        raise RanksLost


def steps_of(n_ranks, n_weights, optimizer="adam", together=None, clipping=None):
    network = LoopbackNetwork(n_ranks, shares=True)
    size = SharedStep.n_bytes(make_optimizer(optimizer, 1), n_weights, n_ranks, clipping)
    memory = network.end(0).share(size)
    parts = [network.end(rank).join(0, memory.place) for rank in range(n_ranks)]
    return [
        SharedStep(
            part, make_optimizer(optimizer, n_weights, 0.05), n_weights, rank, n_ranks, together or Alive(), clipping
        )
        for rank, part in enumerate(parts)
    ]


def at_once(function, arguments):
    """Call it in a thread for each argument; -> what each has returned."""
    results = {}

    def call(i, argument):
        try:
            results[i] = function(argument)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(arguments)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len(results) == len(threads), "a rank still waits"
    return [results[i] for i in range(len(threads))]


@pytest.mark.parametrize("n_weights", [1, 5, 33, 1000, 2 * BLOCK + 7])
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
def test_all_make_the_step_of_one_optimizer_along_the_mean_by_samples(n_ranks, n_weights, optimizer):
    rng, n_steps = np.random.default_rng(n_weights), 6
    steps = steps_of(n_ranks, n_weights, optimizer)
    expected, rule = np.zeros(n_weights, np.float32), make_optimizer(optimizer, n_weights, 0.05)
    gradients = rng.normal(size=(n_steps, n_ranks, n_weights)).astype(np.float32)
    n_samples = rng.integers(0, 9, size=(n_steps, n_ranks))  # none of a rank at times, whose gradient is an old one
    n_samples[:, -1] = 4
    n_samples[:2] = 5  # as many of all, as mostly

    def work(rank):
        seen = []
        for i in range(n_steps):
            if n_samples[i, rank]:
                steps[rank].gradient[:] = gradients[i, rank]
            of_all = steps[rank].average([n_samples[i, rank], 0, rank == 1, 2])
            steps[rank].apply()
            seen.append((of_all, steps[rank].weights.copy()))
        return seen

    of_ranks = at_once(work, range(n_ranks))
    for i in range(n_steps):
        weights = n_samples[i] / n_samples[i].sum()
        rule.apply(expected, (weights[:, None] * gradients[i]).sum(axis=0).astype(np.float32))
        for rank in range(n_ranks):
            numbers, found = of_ranks[rank][i]
            assert numbers == [n_samples[i].sum(), 0, 1, 2 * n_ranks]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
            assert np.array_equal(found, of_ranks[0][i][1]), "the same bits on each"


@pytest.mark.parametrize("name", CLIPPINGS)
@pytest.mark.parametrize(("n_ranks", "n_weights"), [(2, 5), (3, 5), (3, 1000), (2, 2 * BLOCK + 7)])
def test_the_average_is_clipped_by_the_norms_of_all_of_it(name, n_ranks, n_weights):
    # The second array begins in the part of the first rank.
    layers = layers_of([("kernel", (1,)), ("bias", (n_weights - 2,)), ("scale", (1,))])
    clipping, n_steps = Clipping(name, 0.1, layers), 3
    steps = steps_of(n_ranks, n_weights, "sgd", clipping=clipping)
    gradients = np.random.default_rng(1).normal(size=(n_steps, n_ranks, n_weights)).astype(np.float32)
    gradients[:, :, -1] = 1e-3  # within the limit

    def work(rank):
        for i in range(n_steps):
            steps[rank].gradient[:] = gradients[i, rank]
            steps[rank].average([4, 0, 0])
            steps[rank].apply()

    at_once(work, range(n_ranks))
    expected, rule = np.zeros(n_weights, np.float32), make_optimizer("sgd", n_weights, 0.05)
    for of_ranks in gradients:
        mean = of_ranks.mean(axis=0)
        clipping.clip(mean)
        rule.apply(expected, mean)
    np.testing.assert_allclose(steps[0].weights, expected, rtol=1e-4, atol=1e-7)


def test_the_parts_of_the_ranks_are_all_weights_once():
    for n_weights in (1, 16, 17, 100, BLOCK + 1):
        for n_ranks in (1, 2, 5):
            counted = np.zeros(n_weights, int)
            for step in steps_of(n_ranks, n_weights):
                for block in step._part:
                    counted[block] += 1
            assert (counted == 1).all()


def test_an_optimizer_that_has_made_steps_continues():
    """As after a checkpoint, where each rank loads the same."""
    steps = steps_of(2, 40)
    before = make_optimizer("adam", 40, 0.05)
    weights = np.zeros(40, np.float32)
    for _ in range(3):
        before.apply(weights, np.ones(40, np.float32))
    for step in steps:
        step._optimizer.load_state(before.state())
        step.weights[:] = weights

    def work(step):
        step.gradient[:] = 2
        step.average([3, 0, 0])
        step.apply()

    at_once(work, steps)
    before.apply(weights, np.full(40, 2, np.float32))
    np.testing.assert_allclose(steps[0].weights, weights, rtol=1e-6)
    assert np.array_equal(steps[0]._optimizer.state()["velocity"], steps[1]._optimizer.state()["velocity"])


def test_a_rank_that_waits_for_a_dead_rank_is_told():
    (waiting, _) = steps_of(2, 10, together=Bereft())
    (error,) = at_once(lambda step: step.average([1, 0, 0]), [waiting])
    assert isinstance(error, RanksLost)
