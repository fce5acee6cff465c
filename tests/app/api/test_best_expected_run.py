"""The best expected trial of a run: in its journal, reports, commands and results, also after a crash."""

import json
import random
from itertools import pairwise

import pytest

import nnlo_opt
from nnlo_opt import Real, load_run
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from tests.helpers.stories import write_journal

SPACE = {"x": Real(0, 1), "y": Real(0, 1)}


def noisy(x, y):
    return (x - 0.3) ** 2 + (y - 0.7) ** 2 + 0.1 * random.Random(f"{x} {y}").gauss(0, 1)


def exact(x, y):
    return (x - 0.3) ** 2 + (y - 0.7) ** 2


def search(objective=noisy, n_trials=30, **more):
    return nnlo_opt.optimize(objective, SPACE, num_iterations=n_trials, progress=False, **more)


def events_of(run):
    return read_events((run / JOURNAL_NAME).read_bytes(), "journal")[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("noisy") / "run"
    search(checkpoint=place)
    return place


def test_a_noisy_search_names_the_trial_that_it_expects_to_be_the_best(run, printed):
    known = load_run(run)
    number = known.best_expected.number
    assert known.best.figure_of_merit <= known.best_expected.figure_of_merit
    printed("report", run)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["best_expected"]["trial"] == number
    assert summary["best"]["trial"] == known.best.number
    found = json.loads(printed("best", run))
    assert (found["trial"], found["best_expected"]["trial"]) == (known.best.number, number)
    assert found["best_expected"]["parameters"] == known.best_expected.parameters
    assert "expected" in printed("show", run)
    assert f'"best_expected":{{"trial":{number},' in (run / "report.html").read_text().replace(": ", ":")
    assert known.compare(run)["best_expected_trial"].tolist() == [number]
    assert "Best expected" in known._repr_html_()


def test_each_new_name_is_in_the_journal_and_the_last_one_knows_all_trials(run):
    events = events_of(run)
    names = [event.trial for event in events if isinstance(event, ev.BestExpected)]
    assert names
    assert all(before != after for before, after in pairwise(names))
    assert names[-1] == load_run(run).best_expected.number


def test_a_run_that_was_killed_before_the_last_name_gets_it_when_it_is_resumed(run, tmp_path):
    events = events_of(run)
    number = load_run(run).best_expected.number
    last = max(n for n, event in enumerate(events) if isinstance(event, ev.TrialCompleted))
    kept = [event for event in events[: last + 1] if not isinstance(event, ev.BestExpected)]
    (tmp_path / "killed").mkdir()
    write_journal(tmp_path / "killed", kept)
    assert load_run(tmp_path / "killed").best_expected is None
    assert search(checkpoint=tmp_path / "killed", opt_restore=True).best_expected.number == number


@pytest.mark.parametrize(
    ("objective", "more"),
    [(exact, {}), (noisy, {"hyper_opt": "random"}), (noisy, {"n_trials": 8})],
    ids=["no noise", "no process", "few trials"],
)
def test_where_nothing_is_expected_no_trial_is_named(objective, more, tmp_path, printed):
    result = search(objective, checkpoint=tmp_path / "run", **more)
    assert result.best_expected is None
    assert not [event for event in events_of(tmp_path / "run") if isinstance(event, ev.BestExpected)]
    assert "best_expected" not in json.loads(printed("best", tmp_path / "run"))


def test_the_direction_max_names_a_trial_as_well():
    result = search(lambda x, y: -noisy(x, y), direction="max")
    assert result.best_expected is not None
    assert result.best.figure_of_merit >= result.best_expected.figure_of_merit
