"""The tasks, scores and engines of benchmarks/search/search.py mean what they say."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.space import Categorical, Integer

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "search"))
import search_engines
import search_tasks
from search_peers import BoTorch, Setup, filled
from search_scores import REFERENCE, Task, Told, hypervolume

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "search" / "search.py"
PEOPLE = search_tasks.names_of(["people", "people-held"])
#: what all of them can do here, without packages of others
OURS = ("bayesian", "random")


def best_point(task):
    """The point whose regret is said to be 0, found parameter by parameter."""
    surface, space = task.regret, task.space
    chosen = {name: int(heights.argmin()) for name, heights in surface._heights.items()}
    point = {}
    for parameter in space.parameters:
        name = parameter.name
        if name in surface._moved_by:
            centre = surface.centres[name][chosen[by] if (by := surface._moved_by[name]) else 0]
            point[name] = nearest(surface, parameter, centre)
        elif isinstance(parameter, Categorical):
            point[name] = parameter.categories[chosen.get(name, 0)]
        else:
            point[name] = parameter.from_unit(0.5)
    return space.from_unit(space[name].to_unit(point[name]) for name in space.names)


def nearest(surface, parameter, centre):
    if isinstance(parameter, Integer):
        values = range(parameter.low, parameter.high + 1)
        return min(values, key=lambda value: abs(surface.position(parameter.name, value) - centre))
    if parameter.prior == "log-uniform":
        return parameter.low * (parameter.high / parameter.low) ** centre
    return parameter.low + centre * (parameter.high - parameter.low)


@pytest.mark.parametrize("name", [name for name in PEOPLE if "two-losses" not in name])
def test_the_best_point_of_a_task_has_no_regret_and_does_not_fail(name):
    task = search_tasks.task(name)
    best = best_point(task)
    assert task.regret(best) == pytest.approx(0.0, abs=1e-9)
    assert task.fails is None or not task.fails(best)


@pytest.mark.parametrize("name", PEOPLE)
def test_points_of_a_task_have_regrets_from_0_on(name):
    task, rng = search_tasks.task(name), np.random.default_rng(0)
    points = [task.space.sample(rng) for _ in range(200)]
    told = [task.told(point, rng) for point in points]
    score = task.score(points, told)
    assert 0.0 <= score["reached"] <= score["regret"]
    assert (None in told) == (task.fails is not None)


@pytest.mark.parametrize("name", [name for name in PEOPLE if "two-losses" in name])
def test_the_best_front_of_two_losses_has_the_best_hypervolume(name):
    task = search_tasks.task(name)
    power = {"people-two-losses": 0.5, "held-two-losses": 2.0}[name]
    firsts = np.linspace(0.0, 1.0, 20_001).tolist()
    assert hypervolume([(first, 1 - first**power) for first in firsts]) == pytest.approx(
        task.best_hypervolume, rel=1e-3
    )


def test_the_hypervolume_counts_no_area_twice_and_none_beyond_the_reference():
    assert hypervolume([(0.1, 0.6), (0.6, 0.1)]) == pytest.approx(1.0 * 0.5 + 0.5 * 0.5)
    assert hypervolume([(0.1, 0.6), (0.2, 0.7), (REFERENCE, 0.0), (2.0, 0.0)]) == pytest.approx(1.0 * 0.5)
    assert hypervolume([]) == 0.0


def test_a_guess_is_as_far_away_as_its_task_says():
    right, wrong = (search_tasks.task(f"people-guess-{kind}") for kind in ("right", "wrong"))
    assert right.regret(right.guess) < 0.1 < wrong.regret(wrong.guess)


def test_folds_tell_their_standard_error_and_the_score_is_of_what_was_observed():
    task = search_tasks.task("people-folds")
    point = task.space.sample(np.random.default_rng(1))
    told = [task.told(point, np.random.default_rng(seed)) for seed in range(400)]
    expected = pytest.approx(task.noise / math.sqrt(task.n_folds), rel=0.15)
    assert np.std([its.losses[0] for its in told]) == expected
    assert np.sqrt(np.mean([its.std**2 for its in told])) == expected
    line = Task(task.space, lambda point: point["x0"], noise=1.0)
    points = [{"x0": 0.3}, {"x0": 0.1}, {"x0": 0.2}]
    assert line.score(points, [Told((0.0,)), Told((0.5,)), None]) == {"regret": 0.3, "reached": 0.1}
    assert line.score(points, [None, None, None]) == {"regret": math.inf, "reached": math.inf}


@pytest.mark.parametrize("engine", OURS)
@pytest.mark.parametrize("name", ["people-branches", "people-failing", "people-two-losses", "people-folds"])
def test_our_engines_are_told_all_that_a_task_shows(engine, name):
    task = search_tasks.task(name)
    asked = search_engines.make_engine(engine, Setup(task.space, 0, task.n_losses))
    rng = np.random.default_rng(0)
    first = [task.space.sample(rng) for _ in range(15)]
    asked.preload(first, [task.told(point, rng) for point in first])
    points = [asked.ask() for _ in range(2)]
    asked.tell(15, task.told(points[0], rng))
    asked.tell(16, None)
    assert task.space.contains(asked.ask())


def test_points_with_absent_parameters_come_back_from_engines_without_conditions():
    space = search_tasks.task("people-branches").space
    point = space.sample(np.random.default_rng(0))
    whole = filled(space, point)
    assert set(whole) == set(space.names)
    assert search_engines.active(space, whole).keys() == point.keys()


class Remembering(BoTorch):
    """Only what it records."""

    def __init__(self, setup):
        super(BoTorch, self).__init__(setup)

    def suggestion(self):
        return filled(self.space, self.space.sample(np.random.default_rng(len(self.points))))


def test_a_failed_trial_counts_with_the_worst_value_as_soon_as_there_is_one():
    engine = Remembering(Setup(search_tasks.task("people-failing").space, 0))
    for _ in range(4):
        engine.ask()
    engine.tell(1, None)
    assert engine.values() == {}
    engine.tell(0, Told((2.0,)))
    engine.tell(3, Told((3.0,)))
    assert engine.values() == {0: (2.0,), 1: (3.0,), 3: (3.0,)}


def comparison(*arguments):
    """Run search.py; its line, and what it said."""
    command = [sys.executable, SCRIPT, "--lengths", "--evaluations", 6, "--seeds", 2, *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


@pytest.mark.proof
def test_an_engine_is_measured_by_a_python_of_its_own_and_merged(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    kept = tmp_path / "kept.jsonl"
    words = ["--tasks", "branin", "people-two-losses", "--engines", "random", "sobol"]
    done = comparison(*words, "--engine-python", f"sobol={python}", "--keep", kept)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seeds"] == {"branin": 2, "people-two-losses": 2}
    assert set(found["average_rank"]) == {"random", "sobol"}
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("--engines sobol" in call for call in calls)
    assert json.loads(comparison(*words, "--merge", kept).stdout) == found
    assert max(factor for factor, _ in found["worst_factor"].values()) >= 1.0


def test_an_engine_that_cannot_be_had_is_left_out_with_the_reason(tmp_path):
    done = comparison("--tasks", "branin", "--engines", "random", "vizier")
    assert done.returncode == 0, done.stderr
    assert "Skipped: vizier needs vizier, which is not installed." in done.stderr
    assert set(json.loads(done.stdout)["average_rank"]) == {"random"}
    refused = comparison("--engine-python", f"vizier={tmp_path / 'none'}")
    assert refused.returncode == 2
    assert "Write ENGINE=PYTHON" in refused.stderr
    assert os.listdir(tmp_path) == []
