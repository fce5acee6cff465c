import numpy as np
import pytest

from nnlo_opt.engine.data.sets.simulated import simulated


@pytest.mark.parametrize(
    ("name", "x_shape", "y_shape", "names"),
    [
        ("topclass", (150, 94, 5), (3,), ["Images", "Labels"]),
        ("jets", (150, 16), (10,), ["jetConstituentList", "jets"]),
        ("drawn", (32, 32, 3), (10,), ["features", "labels"]),
    ],
)
def test_a_set_has_the_form_of_its_original_and_depends_on_the_seed_alone(name, x_shape, y_shape, names):
    made, again, other = (simulated(name, 20, seed) for seed in (1, 1, 2))
    parts = made.train.datasets()
    assert [*parts] == names
    x, y = parts.values()
    assert (x.shape, y.shape, x.dtype, y.dtype) == ((16, *x_shape), (16, *y_shape), np.float32, np.float32)
    assert np.isfinite(x).all()
    assert len(made.test) == 4
    assert np.array_equal(made.train.x, again.train.x)
    assert not np.array_equal(made.train.x, other.train.x)


def test_classes_of_jets_differ_in_their_mass():
    x, y = simulated("jets", 400, 0).train.datasets().values()
    kind = y[:, -6:-1].argmax(1)
    energy, px, py, pz = (x[:, :, column].sum(1) for column in (3, 0, 1, 2))
    mass = np.sqrt(np.maximum(energy**2 - px**2 - py**2 - pz**2, 0))
    means = [mass[kind == number].mean() for number in range(5)]
    assert means[1] < means[2] < means[3] < means[4]
    assert np.all(y[:, -6:].sum(1) == 1)
