"""Conformance tests of search algorithms."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.search.base import History, SearchAlgorithm
from nnlo_opt.core.trials.trial import TrialState
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Parameter, Point, Real, Space, When

#: space with every kind of parameter, and with categories of every type
MIXED_SPACE = Space(
    [
        Real(1e-5, 1.0, "log-uniform", name="learning_rate"),
        Real(-2.0, 3.0, name="offset"),
        Integer(1, 1_000_000, "log-uniform", name="n_units"),
        Integer(2, 5, name="n_layers"),
        Categorical(["relu", None, True, 1, 2.5, [8, 16]], name="activation"),
    ]
)
#: space of 12 points
SMALL_SPACE = Space([Integer(1, 3, name="n"), Categorical(["a", "b", None, [1]], name="c")])
#: space with nested conditions, a grid, an Ordinal, likely values, and a Constant
CONDITIONAL_SPACE = Space(
    [
        Real(1e-4, 1.0, "log-uniform", name="learning_rate", likely=0.01),
        Real(0.0, 0.9, name="momentum", condition=When("optimizer", "sgd")),
        Categorical([True, False], name="nesterov", condition=When("optimizer", "sgd")),
        Categorical(["sgd", "adam", "none"], name="optimizer"),
        Integer(1, 3, name="n_layers"),
        Ordinal([8, 16, 32], name="width_2", likely=16, condition=When("n_layers", 2, 3)),
        Real(0.0, 1.0, step=0.25, name="dropout_2", condition=When("width_2", 32)),
        Constant([3, 3], name="kernel", condition=When("n_layers", 1)),
    ]
)
#: space of 1 + 3 * (1 + 4) points
SMALL_CONDITIONAL_SPACE = Space(
    [
        Integer(0, 3, name="n"),
        Categorical(["a", "b"], name="c", condition=When("n", 1, 2, 3)),
        Ordinal([1, 2, 3, 4], name="o", condition=When("c", "b")),
    ]
)


def _adds_up(parameters: Point) -> bool:
    return sum(float(value) for value in parameters.values()) <= 1.0  # type: ignore[arg-type, misc]


#: space in which a sixth of a cube is feasible
CONSTRAINED_SPACE = Space([Real(0, 1, name="x"), Real(0, 1, name="y"), Real(0, 1, name="z")], _adds_up)
#: space in which 15 of 64 points are feasible
SMALL_CONSTRAINED_SPACE = Space([Real(0, 1.75, step=0.25, name=name) for name in "xy"], _adds_up)
#: spaces at the limits of what is allowed
ODD_SPACES = {
    "one bit": Space([Integer(0, 1, name="n")]),
    "only categories": Space([Categorical([0, 1, 2.0, "x"], name="a"), Categorical([True, False], name="b")]),
    "hardly a range": Space([Real(1.0, math.nextafter(1.0, 2.0), name="x"), Integer(0, 50, name="n")]),
    "huge ranges": Space([Real(-1e300, 1e300, name="x"), Integer(-(2**53), 2**53, name="n")]),
    "many decades": Space([Real(1e-300, 1e300, "log-uniform", name="x"), Integer(1, 2**53, "log-uniform", name="n")]),
    "many parameters": Space([Real(0, 1, name=f"x{i}") for i in range(20)]),
}
#: name -> loss as a function of the trial's number
ODD_VALUES: dict[str, Callable[[int], float]] = {
    "all equal": lambda trial: 3.0,
    "all zero": lambda trial: 0.0,
    "huge": lambda trial: (-1.0) ** trial * 1e300 / (trial + 1),
    "largest": lambda trial: (-1.0) ** trial * 1.7e308,
    "tiny": lambda trial: trial * 5e-324,
    "one diverged": lambda trial: 1e300 if trial == 3 else 1.0 / (trial + 1),
    "one different": lambda trial: float(trial == 7),
    "nearly equal": lambda trial: 1.0 + trial * 1e-16,
}


def a_value(point: Point) -> float:
    """Return a pseudo-random value between 0 and 1 that depends only on the point."""
    return np.random.default_rng(list(json.dumps(point, sort_keys=True).encode())).random()


@dataclass
class SimulatedSearch:
    """Search whose trials the test ends: at most `n_pending` at a time, oldest first."""

    algorithm: SearchAlgorithm
    history: History
    n_pending: int = 3

    def step(self, value: Callable[[int, Point], float | None]) -> Point | None:
        """Suggest a point and record it; if too many are pending, end the oldest with `value`, None for a failure."""
        trial = self.history.n_suggested
        point = self.algorithm.suggest(self.history)
        if point is None:
            return None
        self.history.record(trial, point, TrialState.PENDING)
        if self.history.states.count(TrialState.PENDING) > self.n_pending:
            row = self.history.states.index(TrialState.PENDING)
            oldest, ended = int(self.history.trials[row - self.history.n_adopted]), self.history.points[row]
            result = value(oldest, ended)
            state = TrialState.FAILED if result is None else TrialState.COMPLETE
            self.history.record(oldest, ended, state, result)
        return point


def run_search(algorithm: SearchAlgorithm, space: Space, n_trials: int) -> list[Point]:
    """Return the points of `n_trials` trials; some are pending, one in seven failed."""
    search = SimulatedSearch(algorithm, History(space))
    points = [search.step(lambda trial, point: None if trial % 7 == 5 else a_value(point)) for _ in range(n_trials)]
    return [point for point in points if point is not None]


class SearchConformance:
    """Test class to inherit from for a custom search algorithm; define `make`.

    >>> class TestMine(SearchConformance):
    ...     @staticmethod
    ...     def make(space, seed):
    ...         return MySearch(space, seed)
    """

    #: number of trials of the longer tests; set it above the size of the initial design
    n_trials = 16
    #: set to False if the algorithm does not avoid regions of failed trials
    leaves_failed_regions = True
    #: set to False if the points do not depend on the seed
    depends_on_seed = True

    @staticmethod
    def make(space: Space, seed: int) -> SearchAlgorithm:
        """Return the algorithm under test."""
        raise NotImplementedError("A suite must have a static method `make`, as its docstring shows.")

    @pytest.mark.parametrize(
        "space", [MIXED_SPACE, CONDITIONAL_SPACE, CONSTRAINED_SPACE], ids=["mixed", "conditions", "constraint"]
    )
    def test_points_are_plain_values_inside_the_space_and_repeat_themselves(self, space: Space) -> None:
        points, again = (run_search(self.make(space, 13), space, self.n_trials) for _ in range(2))
        assert points == again
        assert len({space.key(point) for point in points}) == self.n_trials
        for point in points:
            assert space.contains(point)
            assert space.is_feasible(point)
            assert list(point) == [name for name in space.names if name in point]
            assert all(_is_plain(value) for value in point.values())
            assert space.key(json.loads(json.dumps(point, allow_nan=False))) == space.key(point)

    def test_another_seed_differs(self) -> None:
        if not self.depends_on_seed:
            pytest.skip("not promised by this algorithm")
        first, other = (run_search(self.make(MIXED_SPACE, seed), MIXED_SPACE, self.n_trials) for seed in (4, 5))
        assert all(point not in first for point in other)

    def test_suggestion_is_a_pure_function_of_the_history(self) -> None:
        used = self.make(MIXED_SPACE, 2)
        search = SimulatedSearch(used, History(MIXED_SPACE))
        for _ in range(self.n_trials):
            untouched = self.make(MIXED_SPACE, 2)
            before = list(search.history.states)
            assert untouched.suggest(search.history) == used.suggest(search.history)
            assert list(search.history.states) == before
            search.step(lambda _, point: a_value(point))

    def test_points_handed_out_are_not_shared(self) -> None:
        space = Space([Categorical([[1, 2], [3, 4]], name="shape"), Real(0, 1, name="x")])
        algorithm, history = self.make(space, 3), History(space)
        point = algorithm.suggest(history)
        assert point is not None
        expected = json.dumps(point)
        for value in point.values():
            if isinstance(value, list):
                value.clear()
        assert json.dumps(algorithm.suggest(history)) == expected

    def test_order_in_which_trials_end_does_not_matter(self) -> None:
        algorithm = self.make(MIXED_SPACE, 6)
        points = run_search(algorithm, MIXED_SPACE, self.n_trials)
        suggestions = []
        for order in (range(len(points)), reversed(range(len(points)))):
            history = History(MIXED_SPACE)
            for trial, point in enumerate(points):
                history.record(trial, point, TrialState.PENDING)
            for trial in order:
                history.record(trial, points[trial], TrialState.COMPLETE, a_value(points[trial]))
            suggestions.append(algorithm.suggest(history))
        assert suggestions[0] == suggestions[1]

    @pytest.mark.parametrize("name", ODD_SPACES)
    def test_odd_spaces(self, name: str) -> None:
        space = ODD_SPACES[name]
        points = run_search(self.make(space, 9), space, self.n_trials)
        expected = min(self.n_trials, space.n_points or self.n_trials)
        assert len({space.key(point) for point in points}) == len(points) == expected
        assert all(space.contains(point) for point in points)

    @pytest.mark.parametrize("name", ODD_VALUES)
    def test_odd_values(self, name: str) -> None:
        search = SimulatedSearch(self.make(MIXED_SPACE, 10), History(MIXED_SPACE))
        for _ in range(self.n_trials):
            point = search.step(lambda trial, _: ODD_VALUES[name](trial))
            assert point is not None
            assert MIXED_SPACE.contains(point)
        assert search.history.n_distinct == self.n_trials

    @pytest.mark.parametrize("state", [TrialState.PENDING, TrialState.FAILED])
    def test_history_without_a_single_value(self, state: TrialState) -> None:
        algorithm, history = self.make(MIXED_SPACE, 11), History(MIXED_SPACE)
        for trial in range(self.n_trials):
            point = algorithm.suggest(history)
            assert point is not None
            assert not history.contains(point)
            history.record(trial, point, state)
        assert history.n_distinct == self.n_trials

    @pytest.mark.parametrize(
        ("space", "n_points", "n_pending"),
        [
            (SMALL_SPACE, 12, 0),
            (SMALL_SPACE, 12, 12),
            (SMALL_CONDITIONAL_SPACE, 16, 3),
            (SMALL_CONSTRAINED_SPACE, 15, 3),
        ],
        ids=["one at a time", "all at once", "conditions", "constraint"],
    )
    def test_small_space_is_exhausted_with_each_point_once(self, space: Space, n_points: int, n_pending: int) -> None:
        search = SimulatedSearch(self.make(space, 14), History(space), n_pending)
        for _ in range(n_points):
            assert search.step(lambda trial, point: None if trial == 4 else a_value(point)) is not None
        assert search.history.n_distinct == n_points
        assert all(space.is_feasible(point) for point in search.history.points)
        assert search.step(lambda _, point: a_value(point)) is None

    def test_points_that_other_runs_have_measured_are_not_tried_again(self) -> None:
        """Check that they are skipped from the first trial on, and that the rest of a finite space is exhausted."""
        history, known = History(SMALL_SPACE), [SMALL_SPACE.point_at(index) for index in (0, 1, 4, 7, 11, 0)]
        for point in known:
            history.adopt({"point": point, "value": a_value(point)})
        search = SimulatedSearch(self.make(SMALL_SPACE, 16), history, 1)
        points = [search.step(lambda _, point: a_value(point)) for _ in range(8)]
        assert points[7] is None
        assert None not in points[:7]
        assert not [point for point in points if point in known]

    def test_a_value_after_few_epochs_is_not_taken_for_the_value_of_a_whole_training(self) -> None:
        """Check that suggestions do not concentrate where trials were pruned with deceptively low values.

        The value after the first of nine epochs is 2 below the last one.
        """
        space = Space([Real(0, 1, name="x"), Real(0, 1, name="y")])
        algorithm, history = self.make(space, 18), History(space)
        for trial in range(40):
            point = algorithm.suggest(history.settled())
            assert point is not None
            assert not history.contains(point)
            history.record(trial, point, TrialState.PENDING)
            value = float(point["x"]) ** 2 + float(point["y"]) ** 2  # type: ignore[arg-type]
            if value < 0.4:
                history.record(trial, point, TrialState.COMPLETE, value, curve=[(1, value - 2.0), (9, value)])
            else:
                history.record(trial, point, TrialState.PRUNED, value - 2.0, curve=[(1, value - 2.0)])
        settled = history.settled()
        assert TrialState.PRUNED not in settled.states
        for state, value, point in zip(history.states, settled.values.tolist(), history.points, strict=True):
            assert value == pytest.approx(float(point["x"]) ** 2 + float(point["y"]) ** 2), state  # type: ignore[arg-type]
        if self.leaves_failed_regions:  # only then it learns
            assert sum(state is TrialState.COMPLETE for state in history.states[20:]) >= 12

    def test_a_constraint_that_begins_to_refuse_everything_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("space.space", "search.random"):
            monkeypatch.setattr(f"nnlo_opt.core.{module}.MOST_DRAWS", 1000)
        accepts = True

        def feasible(parameters: Point) -> bool:
            return accepts

        space = Space([Real(0, 1, name="x")], feasible)
        search = SimulatedSearch(self.make(space, 15), History(space))
        assert search.step(lambda _, point: a_value(point)) is not None
        accepts = False
        with pytest.raises(ConfigurationError, match="must accept some points"):
            search.step(lambda _, point: a_value(point))

    def test_failed_region_is_left(self) -> None:
        """Check that the search leaves a region where all trials fail, although values improve towards it."""
        if not self.leaves_failed_regions:
            pytest.skip("not promised by this algorithm")
        parameters: list[Parameter] = [Real(0, 1, name="x"), Real(0, 1, name="y")]
        space = Space(parameters)
        search = SimulatedSearch(self.make(space, 12), History(space), 1)
        for _ in range(30):
            search.step(lambda _, point: None if float(point["x"]) > 0.5 else 1.0 - float(point["x"]))  # type: ignore[arg-type]
        failed = [state is TrialState.FAILED for state in search.history.states]
        assert sum(failed[15:]) <= 7


def _is_plain(value: object) -> bool:
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    return type(value) in (bool, int, float, str, type(None))
