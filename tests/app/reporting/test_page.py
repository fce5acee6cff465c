import json
import re

import pytest

from nnlo_opt.app.reporting.page import write_page
from nnlo_opt.app.reporting.page_data import page_data
from nnlo_opt.core.base.files import atomic_write, make_directory
from nnlo_opt.core.space.parameters import Categorical
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory
from tests.helpers.page_stories import EVIL, LEDGERS, SPACE, fail, point, restarted_with_losses, search
from tests.helpers.told_runs import Story


def data_in(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def test_the_page_holds_everything_it_needs_and_asks_for_nothing(tmp_path):
    write_page(tmp_path, search(3).ledger)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "plotly.js v" in page
    assert not re.search(r"\{\{\w+\}\}", page[: page.index("plotly.js v")])
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert data_in(tmp_path)["summary"]["best"]["trial"] == 0


def test_text_of_users_cannot_leave_the_data(tmp_path):
    folder = tmp_path / "<b>run & co"
    folder.mkdir()
    story = search(6)
    fail(story, story.suggest(900.0, **point(2)))
    write_page(folder, story.ledger)
    data = data_in(folder)
    assert data["name"] == "<b>run & co"
    assert data["parameters"][1]["labels"] == ["sgd", "None", EVIL]
    assert data["failures"][-1][0] == EVIL
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<title>&lt;b&gt;run &amp; co</title>" in page


def test_values_have_their_kinds_and_a_missing_one_is_not_the_category_none(tmp_path):
    data = page_data(search(6).ledger, tmp_path)
    rate, optimizer, momentum, layers = data["parameters"]
    assert (rate["log"], rate["low"], rate["high"], rate["labels"]) == (True, 1e-4, 1.0, None)
    assert optimizer["x"] == [0, 1, 2, 0, 1, 2]
    assert momentum["x"] == [0.0, None, None, pytest.approx(0.3), None, None]
    assert momentum["condition"] == "optimizer is 'sgd'"
    assert layers["x"] == [1, 2, 3, 4, 1, 2]


def test_a_trial_that_was_paused_stands_at_the_time_at_which_it_had_its_figure(tmp_path):
    story = search(1)
    trial = story.suggest(20.0, **point(1))
    story.finish(25.0, story.assign(20.0, trial), 0.5)
    story.apply(
        ev.TrialPaused(time_s=25.0, trial=trial, figure_of_merit=0.5),
        ev.TrialPruned(time_s=900.0, trial=trial, figure_of_merit=0.5, reason="the search is over"),
    )
    story.suggest(901.0, **point(2))
    assert page_data(story.ledger, tmp_path)["trials"]["ends_s"] == [9.0, 25.0, None]


def test_categories_that_look_alike_have_labels_of_their_own(tmp_path):
    story = Story(search_space=Space([Categorical([1, "1", True, "True"], "kind")]).to_json())
    story.suggest(0.0, kind="1")
    (kind,) = page_data(story.ledger, tmp_path)["parameters"]
    assert len(set(kind["labels"])) == 4
    assert kind["x"] == [1]


@pytest.mark.parametrize("n_trials", [0, 1, 4])
def test_too_few_trials_say_that_importance_needs_more(tmp_path, n_trials):
    data = page_data(search(n_trials).ledger, tmp_path)
    assert "At least 5 complete trials" in data["effects"]["why"]
    assert len(data["curves"]) == n_trials


def test_five_trials_have_effects_of_every_parameter(tmp_path):
    effects = page_data(search(5).ledger, tmp_path)["effects"]
    assert {effect["name"] for effect in effects["effects"]} == {"rate", "optimizer", "momentum", "layers"}
    assert effects["n_trials"] == 5


def test_effects_of_a_search_that_prunes_are_of_an_epoch_that_half_of_the_trials_have_reached(tmp_path):
    story = Story(2, search_space=SPACE.to_json())
    for number in range(12):
        trial = story.suggest(0.0, **point(number))
        assignment = story.assign(0.0, trial)
        n_epochs = (1, 3, 9)[number % 3]
        for epoch in range(1, n_epochs + 1):
            report = {"metrics": {}, "figure_of_merit": (1.0 + number) / epoch}
            story.apply(ev.EpochEnded(time_s=1.0, assignment=assignment, epoch=epoch, **report))
        if n_epochs == 9:
            story.finish(2.0, assignment, number)
            story.complete(2.0, trial, number)
        else:
            story.apply(ev.AssignmentStopped(time_s=2.0, assignment=assignment))
            story.apply(ev.TrialPruned(time_s=2.0, trial=trial, figure_of_merit=1.0, reason="worse"))
    effects = page_data(story.ledger, tmp_path)["effects"]
    assert (effects["epoch"], effects["n_trials"]) == (3, 8)


def test_equal_figures_have_no_effects(tmp_path):
    assert "same figure" in page_data(search(6, lambda number: 0.5).ledger, tmp_path)["effects"]["why"]


@pytest.mark.parametrize("make", LEDGERS, ids=lambda make: make.__name__)
def test_every_run_has_a_page(tmp_path, make):
    ledger = make()
    write_page(tmp_path, ledger)
    data = data_in(tmp_path)
    assert len(data["trials"].get("state", [])) == len(ledger.trials)


def test_an_assignment_that_was_lost_ends_with_its_start_and_not_with_the_next(tmp_path):
    spans = page_data(restarted_with_losses(), tmp_path)["assignments"]
    assert (spans["from_s"][-1], spans["to_s"][-1], spans["how"][-1]) == (50.0, 55.0, "lost")


def test_long_curves_are_thinned_out_and_keep_their_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("nnlo_opt.app.reporting.page_data.MOST_POINTS", 60)
    story = Story()
    assignment = story.assign(0.0, story.suggest(0.0))
    for epoch in range(1, 201):
        story.apply(
            ev.EpochEnded(time_s=1.0, assignment=assignment, epoch=epoch, metrics={}, figure_of_merit=1 / epoch)
        )
    ((trial, epochs, figures),) = page_data(story.ledger, tmp_path)["curves"]
    assert (trial, epochs[0], epochs[-1], figures[-1]) == (0, 1, 200, 0.005)
    assert len(epochs) <= 60


def test_a_curve_is_the_mean_over_the_folds(tmp_path):
    story = Story()
    trial = story.suggest(0.0)
    for fold, figure in enumerate((1.0, 3.0)):
        assignment = story.assign(0.0, trial, fold=fold)
        report = {"metrics": {}, "figure_of_merit": figure}
        story.apply(ev.EpochEnded(time_s=1.0, assignment=assignment, epoch=1, **report))
        story.finish(2.0, assignment, figure)
    data = page_data(story.ledger, tmp_path)
    assert data["curves"] == [[0, [1], [2.0]]]
    assert data["folds"] == [[0, 0, 1.0], [0, 1, 3.0]]


def test_a_journal_with_an_epoch_0_has_a_page(tmp_path):
    """Earlier versions recorded it."""
    story = Story()
    assignment = story.assign(0.0, story.suggest(0.0))
    story.apply(ev.EpochEnded(time_s=1.0, assignment=assignment, epoch=0, metrics={}, figure_of_merit=0.5))
    story.finish(2.0, assignment, 0.5)
    assert page_data(story.ledger, tmp_path)["curves"] == []


def test_staleness_comes_from_the_histories_that_can_be_read(tmp_path):
    story = search(3)
    for trial, content in enumerate(['{"staleness": {"0": 5, "2": 1, "dropped": 1}}', "damaged"]):
        folder = fold_directory(tmp_path, trial, 0)
        make_directory(folder)
        atomic_write(folder / "history.json", content)
    staleness = page_data(story.ledger, tmp_path)["staleness"]
    assert staleness["histogram"] == [[0, 5], [2, 1]]
    assert (staleness["dropped"], staleness["n_read"], staleness["n_folds"]) == (1, 1, 3)
    assert staleness["trials"] == [[0, 0.333, 2]]


def test_the_command_is_one_that_a_shell_reads_back(tmp_path):
    story = Story()
    settings = {"command_line": ["OptimizationDriver", "--model", "my model.py"], "versions": {"keras": "3.15"}}
    story.apply(ev.RunStarted(time_s=1.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={}, settings=settings))
    again = page_data(story.ledger, tmp_path)["again"]
    assert again["command"] == "OptimizationDriver --model 'my model.py'"
    assert again["versions"] == {"keras": "3.15"}


def test_training_options_without_effect_are_not_on_the_page(tmp_path):
    training, story = {"optimizer": "adam", "mode": "gem", "gem_lr": 0.1}, Story()
    settings = {"idle": ["optimizer", "learning_rate"]}
    identity = {"training": training}
    started = ev.RunStarted(time_s=1.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity=identity, settings=settings)
    story.apply(started)
    assert page_data(story.ledger, tmp_path)["again"]["training"] == {"mode": '"gem"', "gem_lr": "0.1"}
    story.apply(started.replaced(settings={}))  # a run of an earlier version
    assert page_data(story.ledger, tmp_path)["again"]["training"].keys() == training.keys()
