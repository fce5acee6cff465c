"""Conformance tests of model adapters."""

from abc import abstractmethod
from pathlib import Path

import numpy as np

from nnlo_opt.core.base.trees import Arrays, map_tree
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.data.ragged import take
from nnlo_opt.core.models.adapter import ModelAdapter
from nnlo_opt.core.models.layout import FloatVector
from nnlo_opt.core.training.history import Metrics


class ModelConformance:
    """Test class to inherit from for a custom model adapter; define `make` and `batch`.

    >>> class TestMine(ModelConformance):
    ...     def make(self):
    ...         return MyAdapter()
    ...
    ...     def batch(self, n_samples, seed):
    ...         return my_samples(n_samples, seed)

    The model should be deterministic (no dropout); otherwise set `deterministic` to False.
    """

    #: set to False if the gradient depends on random state, or on the other samples of a batch
    deterministic = True
    #: set to False if the loss does not support sample weights
    takes_sample_weights = True
    #: suffix of the file that `save` writes
    suffix = ".keras"
    #: relative tolerance of float32 sums over a batch
    rtol = 1e-4

    @abstractmethod
    def make(self) -> ModelAdapter:
        """Return a new model with the same weights at every call."""

    @abstractmethod
    def batch(self, n_samples: int, seed: int) -> tuple[Arrays, Arrays]:
        """Return samples and labels that depend only on the arguments."""

    def test_sizes_agree(self) -> None:
        adapter = self.make()
        assert adapter.n_weights == adapter.layout.n_weights > 0
        assert adapter.n_state >= 0
        names = [spec.name for spec in adapter.layout.specs]
        assert len(set(names)) == len(names)

    def test_weights_are_copied_in_and_out(self) -> None:
        adapter = self.make()
        written = np.linspace(-1, 1, adapter.n_weights, dtype=np.float32)
        adapter.write_weights(buffer := written.copy())
        buffer[:] = 0
        assert np.array_equal(_weights(adapter), written)

    def test_borrowed_weights_count_and_are_left_alone(self) -> None:
        adapter, other = self.make(), self.make()
        lent = np.linspace(-1, 1, adapter.n_weights, dtype=np.float32)
        before = lent.copy()
        adapter.borrow_weights(lent)
        other.write_weights(lent)
        assert np.array_equal(_weights(adapter), before)
        if self.deterministic:
            assert np.allclose(
                _gradient(adapter, self.batch(4, 0))[0], _gradient(other, self.batch(4, 0))[0], rtol=self.rtol
            )
        adapter.write_weights(np.zeros_like(lent))
        assert np.array_equal(lent, before), "written weights are the adapter's own"
        lent *= 2
        adapter.borrow_weights(lent)
        assert np.array_equal(_weights(adapter), 2 * before)

    def test_state_is_copied_in_and_out(self) -> None:
        adapter = self.make()
        written = np.linspace(0.5, 1, adapter.n_state, dtype=np.float32)
        adapter.write_state(buffer := written.copy())
        buffer[:] = 0
        assert np.array_equal(_state(adapter), written)

    def test_two_of_a_kind_are_equal_and_independent(self) -> None:
        one, other = self.make(), self.make()
        before = _weights(other)
        assert np.array_equal(_weights(one), before)
        one.write_weights(np.zeros(one.n_weights, np.float32))
        assert np.array_equal(_weights(other), before)

    def test_gradient_is_the_slope_of_the_loss(self) -> None:
        adapter = self.make()
        if not self.deterministic:
            return
        batch = self.batch(32, seed=0)
        weights = _weights(adapter)
        gradient, _ = _gradient(adapter, batch)
        direction = gradient / np.linalg.norm(gradient)
        step = 1e-2
        losses = []
        for sign in (1, -1):
            adapter.write_weights((weights + sign * step * direction).astype(np.float32))
            losses.append(_gradient(adapter, batch)[1].means()["loss"])
        slope = (losses[0] - losses[1]) / (2 * step)
        assert np.isclose(slope, np.linalg.norm(gradient), rtol=2e-2)

    def test_gradient_leaves_the_weights(self) -> None:
        adapter = self.make()
        before = _weights(adapter)
        _gradient(adapter, self.batch(8, seed=0))
        assert np.array_equal(_weights(adapter), before)

    def test_gradient_of_a_union_is_the_weighted_mean(self) -> None:
        if not self.deterministic:
            return
        adapter = self.make()
        one, other = self.batch(10, seed=1), self.batch(30, seed=2)
        gradient, metrics = _gradient(adapter, _union(one, other))
        (g1, m1), (g2, m2) = _gradient(adapter, one), _gradient(adapter, other)
        self._assert_close(gradient, (10 * g1 + 30 * g2) / 40)
        self._assert_same(m1.merge(m2), metrics)

    def test_sample_weights_of_one_change_nothing(self) -> None:
        if not (self.deterministic and self.takes_sample_weights):
            return
        adapter = self.make()
        batch, ones = self.batch(12, seed=7), np.ones(12, np.float32)
        plain, weighted = _gradient(adapter, batch), _gradient(adapter, batch, ones)
        self._assert_close(weighted[0], plain[0])
        self._assert_same(weighted[1], plain[1])
        self._assert_same(adapter.evaluate(*batch, ones), adapter.evaluate(*batch))

    def test_sample_weights_multiply_the_losses(self) -> None:
        if not (self.deterministic and self.takes_sample_weights):
            return
        adapter = self.make()
        batch, n_kept = self.batch(20, seed=8), 8
        kept = tuple(take(part, slice(n_kept)) for part in batch)
        weights = np.zeros(20, np.float32)
        # With sample weights of 0 only the regularisation is left.
        penalty, nothing = _gradient(adapter, batch, weights)
        weights[:n_kept] = 2
        gradient, metrics = _gradient(adapter, batch, weights)
        expected, parts = _gradient(adapter, kept)
        self._assert_close(gradient - penalty, (expected - penalty) * 2 * n_kept / 20)
        penalty_loss = nothing.means()["loss"]
        excess = metrics.means()["loss"] - penalty_loss
        assert np.isclose(excess, (parts.means()["loss"] - penalty_loss) * 2 * n_kept / 20, rtol=1e-3)
        counts = [name for name in metrics.sums if name.endswith("acc")]
        assert [metrics.sums[name] for name in counts] == [nothing.sums[name] for name in counts]

    def test_batches_of_any_length(self) -> None:
        adapter = self.make()
        for n_samples in (1, 7, 64):
            batch = self.batch(n_samples, seed=3)
            assert _gradient(adapter, batch)[1].n_samples == n_samples
            assert adapter.evaluate(*batch).n_samples == n_samples

    def test_evaluation_changes_nothing_and_adds_up(self) -> None:
        adapter = self.make()
        one, other = self.batch(20, seed=4), self.batch(12, seed=5)
        before = _weights(adapter), _state(adapter), adapter.discrete_state()
        whole = adapter.evaluate(*_union(one, other))
        self._assert_same(adapter.evaluate(*one).merge(adapter.evaluate(*other)), whole)
        after = _weights(adapter), _state(adapter), adapter.discrete_state()
        assert np.array_equal(before[0], after[0])
        assert np.array_equal(before[1], after[1])
        assert before[2] == after[2]

    def test_all_state_together_repeats_a_gradient(self) -> None:
        adapter = self.make()
        batch = self.batch(16, seed=6)
        _gradient(adapter, batch)
        weights, state, discrete = _weights(adapter), _state(adapter), adapter.discrete_state()
        first, _ = _gradient(adapter, batch)
        state_after = _state(adapter)
        other = self.make()
        other.write_weights(weights)
        other.write_state(state)
        other.load_discrete_state(discrete)
        second, _ = _gradient(other, batch)
        assert np.array_equal(first, second)
        assert np.array_equal(_state(other), state_after)

    def test_save_replaces_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / f"model{self.suffix}"
        path.write_bytes(b"old")
        self.make().save(path)
        assert path.stat().st_size > 3
        assert [*tmp_path.iterdir()] == [path]

    def _assert_close(self, gradient: np.ndarray, expected: np.ndarray) -> None:
        assert np.allclose(gradient, expected, rtol=self.rtol, atol=self.rtol * np.abs(expected).max())

    def _assert_same(self, one: Metrics, other: Metrics) -> None:
        assert one.n_samples == other.n_samples
        assert one.sums.keys() == other.sums.keys()
        for name, value in one.sums.items():
            assert np.isclose(value, other.sums[name], rtol=self.rtol)
        assert one.states.keys() == other.states.keys()
        for name, state in one.states.items():
            assert np.allclose(state, other.states[name], rtol=self.rtol)


def _weights(adapter: ModelAdapter) -> FloatVector:
    adapter.read_weights(out := aligned_empty(adapter.n_weights))
    return out


def _state(adapter: ModelAdapter) -> FloatVector:
    adapter.read_state(out := aligned_empty(adapter.n_state))
    return out


def _gradient(
    adapter: ModelAdapter, batch: tuple[Arrays, Arrays], sample_weight: FloatVector | None = None
) -> tuple[FloatVector, Metrics]:
    out = aligned_empty(adapter.n_weights)
    return out, adapter.gradient(*batch, out, sample_weight)


def _union(one: tuple[Arrays, Arrays], other: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
    x, y = (map_tree(lambda *arrays: np.concatenate(arrays), *parts) for parts in zip(one, other, strict=True))
    return x, y
