import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.update_rules.downpour import FollowingMaster
from nnlo_opt.core.update_rules.easgd import EasgdMaster
from nnlo_opt.core.update_rules.gem import GemMaster
from nnlo_opt.core.update_rules.layers import layers_of, layers_within, whole_layers
from nnlo_opt.core.update_rules.rule import MasterHalf
from nnlo_opt.core.update_rules.vectors import BLOCK

SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=3), max_size=8)


@given(SHAPES, st.integers(1, 200))
def test_blocks_are_whole_layers_that_cover_all_weights_once(shapes, size):
    layers = layers_of((str(i), shape) for i, shape in enumerate(shapes))
    blocks = [*whole_layers(layers, size)]
    n_weights = layers[-1].part.stop if layers else 0
    assert [i for block in blocks for i in range(block.start, block.stop)] == [*range(n_weights)]
    assert all(block.stop - block.start >= size for block in blocks[:-1])
    within = [(layer, block) for block in blocks for layer in layers_within(layers, block)]
    assert [layer.name for layer, _ in within] == [layer.name for layer in layers]
    vector = np.arange(n_weights)
    for (here, block), layer in zip(within, layers, strict=True):
        assert np.array_equal(vector[block][here.part], vector[layer.part])
        assert vector[layer.part].reshape(layer.shape).size == np.prod(layer.shape)


class Uses(MasterHalf):
    def apply(self, central, update, weight):
        for layer in self.layers:
            central[layer.part] -= update[layer.part]


def test_a_masters_half_that_uses_layers_must_be_by_layer():
    half = Uses()
    half.take_layers(layers_of([("w", (2,))]))
    with pytest.raises(ProtocolError, match="Uses must have `by_layer = True`"):
        half.apply(np.zeros(2, np.float32), np.ones(2, np.float32), 1.0)


class Remembers(MasterHalf):
    def __init__(self, n_weights):
        self.memory = {"sum": np.zeros(n_weights, np.float32)}

    def apply(self, central, update, weight):
        self.memory["sum"] += update
        central -= self.memory["sum"]


def test_memory_is_in_the_state_in_shared_vectors_and_cut_to_blocks():
    half, other = Remembers(4), Remembers(4)
    central, update = np.zeros(4, np.float32), np.arange(4, dtype=np.float32)
    half.apply(central, update.copy(), 1.0)
    memory = [np.zeros(4, np.float32)]
    other.load_state(half.state())
    np.copyto(memory[0], other.vectors[0])
    other.live_in(memory)
    assert other.vectors[0] is memory[0] is other.memory["sum"]
    answer = central.copy()
    for block in (slice(0, 3), slice(3, 4)):
        other.exchange_block(answer, update.copy(), answer, 1.0, block)
    half.apply(central, update.copy(), 1.0)
    assert np.array_equal(answer, central)
    assert np.array_equal(memory[0], half.memory["sum"])
    assert memory[0].tolist() == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.parametrize(
    "make", [lambda n: EasgdMaster(0.3, n, 0.8), lambda n: GemMaster(n, 0.8), lambda n: FollowingMaster(n, 0.8)]
)
def test_an_average_moves_once_an_update_also_block_by_block(make):
    n_weights = 3 * BLOCK
    whole, cut = make(n_weights), make(n_weights)
    central, shared = np.zeros(n_weights, np.float32), np.zeros(n_weights, np.float32)
    rng = np.random.default_rng(0)
    for step in range(1, 4):
        update = rng.normal(size=n_weights).astype(np.float32)
        other = update.copy()
        cut.at_step(step)
        blocks = [*cut.blocks(n_weights, 1)]
        for block in blocks:
            cut.exchange_block(shared, other, np.empty_like(other), 1.0, block)
        whole.apply(central, update, 1.0)
    assert len(blocks) > 1
    assert np.array_equal(shared, central)
    assert np.array_equal(cut.average, whole.average)
    assert np.abs(whole.average - central).max() > 1e-3
    assert whole.n_steps == cut.n_steps == 3
    assert GemMaster().average is None


@pytest.mark.parametrize("state", [{}, {"memory.sum": np.zeros(3)}, {"memory.other": np.zeros(4)}, {"more": 1}])
def test_another_state_than_that_of_the_half_is_refused(state):
    with pytest.raises(ProtocolError, match=r"has the state {'sum': \(4,\)}"):
        Remembers(4).load_state(state)
