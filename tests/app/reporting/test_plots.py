import os
from functools import partial

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from nnlo_opt.app.reporting import plots
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.recorded import REST, SPACE, TRIALS, events_of, started, two_objectives
from tests.helpers.refusals import check_refused

PLOTS = {
    "history": plots.plot_history,
    "history over time": partial(plots.plot_history, by="time"),
    "parallel": plots.plot_parallel,
    "curves": plots.plot_curves,
    "folds": plots.plot_folds,
    "pareto": plots.plot_pareto,
    "blocks": plots.plot_blocks,
    "importance": plots.plot_importance,
    "parameter": lambda ledger, ax: plots.plot_parameter(ledger, "lr", ax),
    "choice": lambda ledger, ax: plots.plot_parameter(ledger, "act", ax),
}


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(autouse=True)
def without_figures():
    """Other tests may have left some open; drawing here makes none."""
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")


def lines_of(ax):
    return {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.get_lines()}


def texts_of(ax):
    return " ".join(text.get_text() for text in ax.texts)


#: sentences in axes without anything to show, if they are not about complete trials
OWN = {
    "importance": "At least 5 complete trials are needed to tell parameters apart; there are none.",
    "curves": "No epoch was reported.",
    "pareto": "The run has one objective.",
}


@pytest.mark.parametrize("name", PLOTS)
def test_axes_come_back_and_no_global_figure_is_made(name, ax):
    ledger = Ledger(two_objectives() if name == "pareto" else events_of(TRIALS * 2))
    assert PLOTS[name](ledger, ax) is ax
    assert ax.has_data()
    assert not matplotlib.pyplot.get_fignums()


@pytest.mark.parametrize("name", PLOTS)
def test_axes_of_a_run_without_trials_say_so(name, ax):
    PLOTS[name](Ledger(events_of([])), ax)
    assert texts_of(ax) == (OWN[name] if name in ("importance", "pareto") else "There is no trial yet.")
    assert not ax.has_data()


@pytest.mark.parametrize("name", [name for name in PLOTS if name != "blocks"])
def test_axes_say_that_all_trials_of_a_run_failed(name, ax):
    PLOTS[name](Ledger(events_of([(TRIALS[3][0], "no memory")] * 2)), ax)
    assert texts_of(ax) == OWN.get(name, "No trial is complete: 2 of 2 failed.")
    assert not ax.has_data()


@pytest.mark.parametrize("name", PLOTS)
def test_a_run_of_one_trial_is_drawn(name, ax):
    PLOTS[name](Ledger(events_of(TRIALS[:1])), ax)
    assert ax.has_data() == (name not in ("importance", "pareto"))


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("name", ["history", "parameter", "curves", "parallel", "folds"])
def test_the_largest_of_numbers_are_drawn(name, signs, ax):
    """The text of an axis is made when the figure is drawn."""
    events = [
        event.replaced(figure_of_merit=signs[i % 2] * 8e307) if getattr(event, "figure_of_merit", None) else event
        for i, event in enumerate(events_of(TRIALS * 2))
    ]
    PLOTS[name](Ledger(events), ax).figure.savefig(os.devnull, format="svg")


def test_a_trial_that_was_paused_and_then_pruned_stands_where_it_was_trained(ax):
    events = events_of()
    moved = [event.replaced(time_s=39.0) if isinstance(event, ev.TrialPruned) else event for event in events]
    plots.plot_history(Ledger(sorted(moved, key=lambda event: event.time_s)), ax, by="time")
    assert lines_of(ax)["pruned"] == ([29], [2.0])


def test_the_importance_of_a_parameter_has_its_uncertainty(ax):
    points = [SPACE.sample(rng) for rng in [np.random.default_rng(0)] for _ in range(24)]
    plots.plot_importance(Ledger(events_of([(point, 4.0 + np.log10(point["lr"])) for point in points])), ax)
    assert next(label.get_text() for label in ax.get_yticklabels()) == "lr"
    assert ax.patches[0].get_width() > 0.8
    low, high = ax.collections[0].get_segments()[0][:, 0]
    assert low <= ax.patches[0].get_width() <= high


def test_without_axes_pyplot_makes_them():
    made = plots.plot_history(Ledger(events_of()))
    assert matplotlib.pyplot.fignum_exists(made.figure.number)
    matplotlib.pyplot.close(made.figure)


def test_the_history_has_the_best_so_far_in_the_direction_of_the_search(ax):
    plots.plot_history(Ledger(events_of()), ax)
    assert lines_of(ax)["best so far"] == ([0, 1, 2, 5, 5], [0.25, 0.25, 0.25, 0.25, 0.25])
    assert lines_of(ax)["failed"][0] == [3]
    assert lines_of(ax)["pruned"] == ([4], [2.0])
    assert ax.get_yscale() == "log", "400 is more than a thousand times 0.25"


def test_the_history_of_a_maximum_rises(ax):
    plots.plot_history(Ledger(events_of(direction="max")), ax, by="time")
    assert lines_of(ax)["best so far"] == ([9, 9, 19, 29, 29], [0.25, 0.5, 0.75, 400.0, 400.0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("time / s", "val_loss (maximised)")


def test_a_parameter_with_a_logarithmic_prior_has_a_logarithmic_axis(ax):
    plots.plot_parameter(Ledger(events_of()), "lr", ax)
    assert ax.get_xscale() == "log"
    assert lines_of(ax)["best: trial 0"] == ([0.01], [0.25])


def test_choices_have_their_names_on_the_axis_and_trials_without_the_parameter_are_left_out(ax):
    ledger = Ledger(events_of())
    plots.plot_parameter(ledger, "act", ax)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["relu", "None"]
    plots.plot_parameter(ledger, "n", other := Figure().subplots())
    assert sorted(lines_of(other)["_child0"][0]) == [1, 8]


def test_a_line_in_parallel_has_a_gap_for_a_parameter_that_the_trial_has_not(ax):
    plots.plot_parallel(Ledger(events_of()), ax, ["lr", "n"])
    best = ax.collections[0].get_segments()[-1]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["lr", "n", "val_loss"]
    assert best[0][1] == pytest.approx(1 / 3), "0.01 is a third of the way from 0.001 to 1"
    assert best[-1].tolist() == [2, 0]
    assert np.isnan(ax.collections[0].get_paths()[-2].vertices[:, 1]).tolist() == [False, True, False]


def test_curves_are_means_over_the_folds(ax):
    plots.plot_curves(Ledger(events_of()), ax)
    assert lines_of(ax)["best: trial 0"] == ([1, 2], [1.0, 0.25])
    assert lines_of(ax)["pruned"] == ([1], [2.0])


def test_the_pareto_set_is_marked(ax):
    plots.plot_pareto(Ledger(two_objectives()), ax)
    assert lines_of(ax)["Pareto set"] == ([0.8, 0.9], [10.0, 1000.0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("val_acc (maximised)", "n_weights (minimised)")
    assert ax.get_yscale() == "log"


def test_a_block_has_a_lane_for_each_team_and_a_lost_assignment_ends_with_its_start(ax):
    place = {"trial": 0, "fold": 0, "team": 0, "block": 1, "n_ranks": 2}
    events = [
        started(),
        ev.TrialSuggested(time_s=1.0, trial=0, point={"lr": 0.1, "act": None, **REST}),
        ev.FoldAssigned(time_s=1.0, assignment=0, attempt=1, **place),
        ev.EpochEnded(time_s=5.0, assignment=0, epoch=1, metrics={}),
        started().replaced(time_s=50.0),
        ev.AssignmentLost(time_s=50.0, assignment=0),
        ev.FoldAssigned(time_s=50.0, assignment=1, attempt=2, **place),
        ev.EpochEnded(time_s=60.0, assignment=1, epoch=2, metrics={}),
    ]
    plots.plot_blocks(Ledger(events), ax)
    assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(1.0, 4.0), (50.0, 10.0)]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["lost", "under way"]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            lambda ledger: plots.plot_parameter(ledger, "nn"),
            "must be one of lr, n, act, size, bias, batch. Received: 'nn'.",
        ),
        (lambda ledger: plots.plot_parallel(ledger, names=["lr", "nn"]), "Received: 'nn'. Did you mean `n`?"),
        (lambda ledger: plots.plot_history(ledger, by="hour"), "Received: 'hour'"),
    ],
)
def test_a_wrong_name_is_refused(draw, words):
    check_refused(words, draw, Ledger(events_of()))
    assert not matplotlib.pyplot.get_fignums()


def test_a_wrong_objective_is_refused(ax):
    ledger, wrong = Ledger(two_objectives()), ["val_acc", "n_weight"]
    check_refused("Received: 'n_weight'. Did you mean `n_weights`?", plots.plot_pareto, ledger, ax, wrong)


# ---------------------------------------------------------------- files


@pytest.mark.proof
def test_figures_for_a_paper_are_vectors_with_embedded_fonts(tmp_path):
    paths = plots.write_figures(Ledger(events_of()), tmp_path / "paper")
    drawn = ["history", "history_time", "parallel", "curves", "folds", "blocks", "parameters"]
    assert [path.name for path in paths] == [f"{name}{suffix}" for name in drawn for suffix in (".png", ".pdf")]
    assert sorted(paths) == sorted((tmp_path / "paper").iterdir())
    pdf = (tmp_path / "paper/history.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Subtype /Image" not in pdf


def test_a_run_without_anything_to_show_has_no_figures(tmp_path):
    assert plots.write_figures(Ledger(events_of([])), tmp_path) == []
