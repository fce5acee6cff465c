import re

import pytest

from nnlo_opt.app.reporting.table import MOST_ROWS, pareto_table, text_table, trials_table
from nnlo_opt.core.trials import events as ev
from tests.helpers.told_runs import Story


def ledger_with(figures, direction="min", n_fold=1, n_epochs=3):
    """One trial a figure; None: a failed one."""
    story = Story(direction=direction)
    for n, figure in enumerate(figures):
        trial = story.suggest(0.0, n=100 + n, sizes=[8, 16])
        if figure is None:
            story.apply(ev.AssignmentFailed(time_s=1.0, assignment=story.assign(0.0, trial), reason="x"))
            story.apply(ev.TrialFailed(time_s=1.0, trial=trial, reason="out of [memory]"))
            continue
        for fold in range(n_fold):
            story.finish(1.0, story.assign(0.0, trial, fold=fold), figure, n_epochs=n_epochs, train_s=1.25)
        story.complete(1.0, trial, figure, std=0.125)
    return story.ledger


def rows_of(text):
    return [line for line in text.splitlines() if re.match(r" +\d", line)]


def test_a_table_names_its_columns_and_has_a_row_a_trial_in_order():
    text = trials_table(ledger_with([0.5, 0.25, None]))
    for word in ("trial", "figure of merit", "epochs", "train s", "n", "sizes"):
        assert word in text
    rows = rows_of(text)
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert rows[0].split()[:5] == ["0", "0.5", "3", "1.2", "100"]
    assert rows[1].endswith("best")
    assert not rows[0].endswith("best")
    assert rows[2].split()[:4] == ["2", "-", "-", "1.0"]


def test_objectives_that_report_nothing_have_no_column_of_epochs():
    text = trials_table(ledger_with([0.5, None], n_epochs=0))
    assert "epochs" not in text
    assert [row.split()[:3] for row in rows_of(text)] == [["0", "0.5", "1.2"], ["1", "-", "1.0"]]


def test_brackets_in_values_and_reasons_are_shown_as_they_are():
    text = trials_table(ledger_with([0.5, None]))
    assert "[8, 16]" in text
    assert "out of [memory]" in text


def test_the_spread_over_folds_is_shown_only_where_there_are_folds():
    assert "0.5 ± 0.1250" in trials_table(ledger_with([0.5], n_fold=2))
    assert "±" not in trials_table(ledger_with([0.5]))


@pytest.mark.parametrize(("direction", "expected"), [("min", range(MOST_ROWS)), ("max", range(59, 19, -1))])
def test_a_long_search_shows_its_best_trials_best_first_and_says_so(direction, expected):
    text = trials_table(ledger_with([n / 100 for n in range(60)], direction))
    assert f"The best {MOST_ROWS} of 60 trials" in text
    assert [int(row.split()[0]) for row in rows_of(text)] == list(expected)


def test_trials_that_have_not_ended_say_where_they_stand():
    ledger = ledger_with([0.5])
    ledger.apply(ev.TrialSuggested(time_s=2.0, trial=1, point={"n": 5, "sizes": []}))
    assert rows_of(trials_table(ledger))[1].endswith("pending")


def test_a_run_without_trials_and_a_point_without_parameters_have_a_table():
    assert "Trials" in trials_table(ledger_with([]))
    story = Story()
    story.suggest(0.0)
    assert len(rows_of(trials_table(story.ledger))) == 1


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_no_line_is_too_long_or_ends_in_blanks_and_no_number_is_cut(width):
    story = Story()
    values = {f"train.parameter_{i}": 1e-5 + i / 7 for i in range(6)} | {"sizes": [512, 256, 128], "always": "adam"}
    for n in range(3):
        trial = story.suggest(0.0, **values, rate=123456.7 * n)
        story.finish(1.0, story.assign(0.0, trial), 1 / 3, n_epochs=100, train_s=12345.6)
        story.complete(1.0, trial, 1 / 3, std=0.0)
    text = trials_table(story.ledger, width)
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    shown = [row.split() for row in rows_of(text)]
    assert [row[:4] for row in shown] == [[str(n), "0.333333", "100", "12345.6"] for n in range(3)]
    whole = {*(f"{value:.4g}" for value in (*(1e-5 + i / 7 for i in range(6)), 123456.7, 246913.4, 0.0))}
    assert {cell for row in shown for cell in row[4:]} <= whole | {"[512,", "256,", "128]", "adam", "best"}
    assert ("Left out" in text) == (width < 150)
    assert "1.235e+05" in text  # what differs stays longer than what is the same in all trials


def test_reasons_are_below_the_table_each_once():
    text = trials_table(ledger_with([None, 0.5, None]))
    assert text.endswith("Trials 0, 2 failed: out of [memory]")
    assert [row.split()[-1] for row in rows_of(text)] == ["failed", "best", "failed"]


def test_a_parameter_that_a_trial_has_not_is_a_dash():
    story = Story()
    story.suggest(1.0, optimizer="adam", none=None)
    story.suggest(1.0, optimizer="sgd", momentum=0.5)
    first, second = trials_table(story.ledger).splitlines()[-2:]
    assert first.split() == ["0", "-", "-", "-", "adam", "None", "-", "pending"]
    assert second.split() == ["1", "-", "-", "-", "sgd", "-", "0.5", "pending"]


# ---------------------------------------------------------------- many columns


def with_objectives(n, n_parameters=2):
    """Three complete trials of `n` objectives; each is the number of the trial and of the objective."""
    names = [f"val_metric_{i}" for i in range(n)]
    story = Story(objectives=[f"{name}:min" for name in names])
    for number in range(3):
        trial = story.suggest(0.0, **{f"p{i}": i for i in range(n_parameters)})
        objectives = {name: 1000 * number + i + 0.125 for i, name in enumerate(names)}
        story.finish(1.0, story.assign(0.0, trial), 1000 * number + 0.125, objectives=objectives)
        story.complete(1.0, trial, 1000 * number + 0.125, objectives=objectives)
    return story.ledger


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("table", [trials_table, pareto_table])
def test_a_table_of_twenty_objectives_fits_and_cuts_no_figure(table, width):
    text = table(with_objectives(20), width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    shown = [i for i in range(20) if f"{i + 0.125}" in words]
    assert shown[0] == 0
    left_out = text.partition(f"Left out at {width} columns: ")[2]
    assert re.findall(r"val_metric_(\d+)", left_out) == [str(i) for i in range(20) if i not in shown]
    assert "p0, p1." in " ".join(left_out.split())


def test_parameters_are_left_out_before_objectives():
    text = trials_table(with_objectives(4, 9), 70)
    assert "Left out at 70 columns: p" in text
    assert all(f"{i + 0.125}" in text for i in range(4))


def test_a_table_in_which_nothing_may_be_left_out_is_wider_than_asked_and_whole():
    text = text_table("", ["trial", "a", "b"], [["1", "1234567890.5", "2234567890.5"]], width=20)
    assert text.splitlines()[-1].split() == ["1", "1234567890.5", "2234567890.5"]
