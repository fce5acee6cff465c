import numpy as np
import pytest

from nnlo_opt.tools.simulate.workload import BUILTIN


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("hartmann6", (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)),
        ("branin", (-np.pi, 12.275)),
        ("branin", (np.pi, 2.275)),
        ("branin", (9.42478, 2.475)),
    ],
)
def test_the_optimum_is_where_the_literature_has_it_and_nothing_around_is_better(name, x):
    objective = BUILTIN[name]
    assert objective.space.names == tuple(f"x{i}" for i in range(1, len(x) + 1))
    point = dict(zip(objective.space.names, map(float, x), strict=True))
    assert objective.space.contains(point)
    assert objective.function(point) == pytest.approx(objective.optimum, abs=1e-5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        near = {name: value + 0.01 * rng.normal() for name, value in point.items()}
        assert objective.function(near) >= objective.optimum


@pytest.mark.parametrize("objective", BUILTIN.values(), ids=lambda objective: objective.name)
def test_no_point_of_the_space_is_better_than_the_optimum(objective):
    rng = np.random.default_rng(1)
    assert min(objective.function(objective.space.sample(rng)) for _ in range(2000)) >= objective.optimum
