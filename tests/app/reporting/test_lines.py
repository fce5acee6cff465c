import pytest

from nnlo_opt.app.reporting.lines import ProgressLines, TrainingLines
from nnlo_opt.app.reporting.words import duration_text, losses_text, metrics_text, outcome, point_text, value_text
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import PruningPlan
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import assigned, completed, failed, finished, suggested


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (3600, "1:00:00"), (-5, "0:00:00"), (360_000 + 61, "100:01:01")],
)
def test_durations_are_hours_minutes_and_seconds(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (1e-7, "1e-07"), (3, "3"), (True, "True"), (None, "None"), ("relu", "relu"), ([8], "[8]")],
)
def test_values_are_short(value, text):
    assert value_text(value) == text


def test_points_and_metrics_are_one_line():
    assert point_text({"n": 3, "rate": 0.0012345}) == "n=3 rate=0.001234"
    assert metrics_text({"loss": 0.5, "acc": 1.0}) == "loss 0.5000 acc 1.0000"


def started(trial=0, time_s=1.0, point=None, fold=0, attempt=1, block=1):
    """The first events of a trial, whose assignment has its number."""
    where = assigned(trial, trial, time_s, fold=fold, attempt=attempt, block=block)
    return [suggested(trial, point or {}, time_s), where]


def ended(trial=0, figure=1.0, time_s=20.0, std=0.0):
    """The last events of such a trial."""
    return [finished(trial, figure, time_s), completed(trial, figure, time_s, std)]


class Screen:
    """A search as rank 0 shows it."""

    def __init__(self, num_iterations=3, *, start_s=0.0, ledger=None, identity=None, **plan):
        self.ledger = ledger or Ledger()
        self.ledger.apply(ev.RunStarted(time_s=start_s, unix_s=start_s, n_ranks=3, n_blocks=1, identity=identity or {}))
        state = CoordinatorState(SearchPlan(num_iterations=num_iterations, **plan), Topology.plan(3, 2), self.ledger)
        self.policy = state.policy
        self.lines, self.styles = [], []
        self.progress = ProgressLines(self.write, state.plan, self.ledger, self.policy)

    def write(self, text, *, style=""):
        self.lines.append(text)
        self.styles.append(style)

    def __call__(self, *events):
        """The new lines; as in the coordinator, the ledger knows all events of a step before the first is shown."""
        n_before = len(self.lines)
        for event in events:
            self.ledger.apply(event)
            self.policy.take(event)
        for event in events:
            self.progress.observe(event, self.ledger)
        return self.lines[n_before:]

    def trial(self, number, figure=0.5, time_s=10.0):
        """A whole trial; the line of its end."""
        self(*started(number, time_s, {"n": number}))
        return self(*ended(number, figure, time_s, std=0.25))[-1]


def test_one_line_says_that_trials_count_their_epochs_from_0():
    screen = Screen()
    report = {"metrics": {"value": 0.5}, "figure_of_merit": 0.5, "counts_from_0": True}
    said = [
        screen(*started(trial), ev.EpochEnded(time_s=2.0, assignment=trial, epoch=1, **report), *ended(trial))
        for trial in (0, 1)
    ]
    assert [line for lines in said for line in lines if "from 0" in line] == [said[0][1]]
    assert said[0][1].endswith("trial 0 counts its epochs from 0: here each has 1 more, so that its epoch 0 is epoch 1")


def test_a_line_as_a_trial_starts_reports_and_ends():
    screen = Screen()
    (line,) = screen(*started(point={"n": 3, "rate": 0.5}, block=2))
    assert line == "[      1.0 s] trial 0 starts on block 2: n=3 rate=0.5"
    assert screen(ev.FoldBegan(time_s=2.0, assignment=0)) == []
    (line,) = screen(ev.EpochEnded(time_s=3.0, assignment=0, epoch=1, metrics={"loss": 0.5}))
    assert line == "[      3.0 s] trial 0 epoch 1: loss 0.5000"
    (line,) = screen(*ended(figure=0.125))
    assert line == "[     20.0 s] trial 0 complete: 0.125 | new best | 1/3 done | about 0:00:40 left"


def test_a_line_names_the_origin_of_a_point_that_no_algorithm_has_chosen():
    point, *others = started(point={"n": 3}, block=2)
    (line,) = Screen()(point.replaced(origin="likely values"), *others)
    assert line == "[      1.0 s] trial 0 starts on block 2 (likely values): n=3"


@pytest.mark.parametrize("n_fold", [1, 2])
def test_a_trial_has_a_line_of_epochs_a_second_and_one_of_its_last_epoch(n_fold):
    def epochs(assignment, *times_s):
        reports = enumerate(times_s, 1)
        return [ev.EpochEnded(time_s=s, assignment=assignment, epoch=n, metrics={"loss": 1.0}) for n, s in reports]

    screen = Screen(n_fold=n_fold)
    screen(*started(0), *started(1))
    lines = screen(*epochs(0, 2.0, 2.5, 3.1, 3.2, 4.0), *epochs(1, 4.1, 4.2), *ended(0, time_s=4.3), *ended(1))
    fold = " fold 0" * (n_fold > 1)
    assert [line.partition("] ")[2].partition(":")[0] for line in lines] == [
        *(f"trial 0{fold} epoch {n}" for n in (1, 3)),
        f"trial 1{fold} epoch 1",
        *sorted([f"trial 0{fold} epoch 5", f"trial 1{fold} epoch 2"]),  # both had ended before the first line
        "trial 0 complete",
        "trial 1 complete",
    ]


def test_a_failed_trial_says_why_and_that_there_is_no_figure_yet():
    screen = Screen(num_iterations=1)
    _, line = screen(*failed(0))
    assert line == "[     20.0 s] trial 0 failed: no memory | no figure of merit yet | 1/1 done"
    assert screen.styles[-1] == "bad"


def test_a_reason_is_printed_once():
    screen = Screen()
    screen(*failed(0))
    assert "trial 1 failed as trial 0 did |" in screen(*failed(1))[-1]


def test_another_attempt_after_a_loss_that_counts_is_one_line_with_its_number_and_the_reason():
    screen = Screen(max_attempts=3)
    screen(*started(point={"n": 1}))

    def lost(assignment, attempt, *reports):
        event = ev.AssignmentLost(time_s=2.0, assignment=assignment, reason="SIGKILL", counts=True, of_script=True)
        again = assigned(assignment + 1, 0, 2.0, attempt=attempt)
        return screen(*reports, event, again)[-1]

    assert lost(0, 2) == "[      2.0 s] trial 0 starts again on block 1, attempt 2 of 3: SIGKILL"
    epoch = ev.EpochEnded(time_s=2.0, assignment=1, epoch=1, metrics={"loss": 0.5})
    assert lost(1, 3, epoch).endswith("trial 0 starts again on block 1, attempt 3 (2 of 3 without progress): SIGKILL")


def test_folds_are_named_and_their_spread_is_shown_only_where_there_are_folds():
    screen = Screen(n_fold=2)
    began = ev.FoldBegan(time_s=2.0, assignment=0, epoch=4)
    assert screen(*started(point={"n": 1}, fold=1, attempt=2), began) == [
        "[      1.0 s] trial 0 starts again on block 1, attempt 2: n=1",
        "[      2.0 s] trial 0 fold 1 resumes after epoch 4",
    ]
    assert "0.5 ± 0.2500" in Screen(n_fold=2).trial(0)
    assert "±" not in Screen().trial(0)


def test_a_training_has_a_line_for_each_epoch_with_the_time_left_and_none_of_a_search():
    screen = Screen()
    screen.progress = TrainingLines(screen.lines.append, TrainingOptions(epochs=3))
    lines = screen(
        *started(),
        ev.FoldBegan(time_s=4.0, assignment=0, epoch=1),
        ev.EpochEnded(time_s=14.0, assignment=0, epoch=2, metrics={"loss": 0.5}),
        ev.EpochEnded(time_s=20.0, assignment=0, epoch=3, metrics={"loss": 0.5}),
        *ended(),
    )
    assert lines == ["training resumes after epoch 1", "epoch 2/3: loss 0.5000, 0:00:10 left", "epoch 3/3: loss 0.5000"]


def test_folds_of_a_training_are_named_and_a_rule_may_end_them_early():
    screen = Screen()
    training = TrainingOptions(epochs=9, early_stopping="loss,<,2")
    screen.progress = TrainingLines(screen.lines.append, training, n_fold=2)
    assert screen(
        *started(fold=1, attempt=2),
        ev.FoldBegan(time_s=1.0, assignment=0),
        ev.EpochEnded(time_s=11.0, assignment=0, epoch=1, metrics={"loss": 0.5}),
    ) == ["fold 1, epoch 1/9: loss 0.5000, up to 0:01:20 left"]


def test_the_best_follows_the_direction():
    screen = Screen(direction="max")
    screen.trial(0, 0.25)
    assert "trial 1 complete: 0.75 | new best | 2/3 done" in screen.trial(1, 0.75)
    assert screen.styles[-1] == "good"
    assert "trial 2 complete: 0.5 | best 0.75 (trial 1)" in screen.trial(2, 0.5)
    assert screen.styles[-1] == ""


def test_a_trial_that_enters_the_pareto_set_is_marked():
    screen = Screen(identity={"objectives": ["a:min", "b:min"]})
    lines = []
    for trial, (a, b) in enumerate([(1.0, 2.0), (3.0, 4.0)]):
        screen(suggested(trial, {}))
        lines += screen(completed(trial, a, 1.0, objectives={"a": a, "b": b}))
    assert "complete: a 1 b 2 | new in the Pareto set of 1 trial | 1/3 done" in lines[0]
    assert "complete: a 3 b 4 | Pareto set of 1 trial | 2/3 done" in lines[1]
    assert screen.styles == ["good", ""]


def test_the_time_left_is_estimated_from_the_trials_of_this_start_alone():
    first = Screen(num_iterations=4)
    first.trial(0, time_s=500.0)
    first.trial(1, time_s=900.0)
    second = Screen(num_iterations=4, start_s=1000.0, ledger=first.ledger)
    line = second.trial(2, time_s=1010.0)
    assert line.startswith("[     10.0 s] trial 2 complete")  # one clock, which begins with each start
    assert "3/4 done | about 0:00:10 left" in line
    assert "left" not in second.trial(3, time_s=1020.0)


def test_a_trial_that_is_completed_in_the_first_step_of_a_start_is_one_of_this_start():
    screen = Screen(num_iterations=2)
    assert "1/2 done" in screen(*started(), *ended())[-1]


def test_a_search_with_rungs_says_each_thing_once_and_counts_what_is_paused():
    screen = Screen(4, n_fold=2, pruning=PruningPlan(name="asha", eta=2, max_epochs=4))
    lines = []
    for trial in (0, 1):
        lines += screen(suggested(trial, {"n": trial}, 10.0))
        for fold in (0, 1):
            number, report = 2 * trial + fold, {"metrics": {"value": 0.5 - 0.1 * trial}}
            reported = ev.EpochEnded(time_s=10.0, assignment=number, epoch=1, figure_of_merit=0.5 - trial / 8, **report)
            paused = ev.AssignmentPaused(time_s=10.0, assignment=number, epoch=1)
            lines += screen(assigned(number, trial, 10.0, fold=fold), reported, paused)
        promoted = [ev.TrialPromoted(time_s=12.0, trial=1, n_rungs=1)] * trial  # in the step in which it is paused
        lines += screen(ev.TrialPaused(time_s=10.0, trial=trial, figure_of_merit=0.5 - trial / 8), *promoted)
    for fold in (0, 1):
        began = ev.FoldBegan(time_s=12.0, assignment=4 + fold, epoch=1)
        lines += screen(assigned(4 + fold, 1, 10.0, fold=fold), began, finished(4 + fold, 0.25, 20.0, n_epochs=4))
    lines += screen(completed(1, 0.25, 20.0))
    lines += screen(ev.TrialPruned(time_s=20.0, trial=0, figure_of_merit=0.5, reason="not promoted"))
    assert [line.partition("] ")[2] for line in lines] == [
        "trial 0 starts on block 1: n=0",
        "trial 0 fold 0 epoch 1: figure of merit 0.5",
        "trial 0 fold 1 epoch 1: figure of merit 0.5",
        "trial 0 paused: 0.5, place 1 of 1 at epoch 1 | about 0:00:30 left",
        "trial 1 starts on block 1: n=1",
        "trial 1 fold 0 epoch 1: figure of merit 0.4",
        "trial 1 fold 1 epoch 1: figure of merit 0.4",
        "trial 1 paused: 0.375, place 1 of 2 at epoch 1 | about 0:00:30 left",
        "trial 1 promoted to epoch 2 (place 1 of 2 at epoch 1)",
        "trial 1 complete: 0.25 ± 0.0000 | new best | 1/4 done, 1 paused | about 0:00:20 left",
    ]


def test_the_outcome_counts_only_states_that_occur():
    screen = Screen()
    assert outcome(screen.ledger) == "no trial yet"
    screen.trial(0)
    screen(suggested(1, {}, 11.0))
    assert outcome(screen.ledger) == "1 pending, 1 complete"


def test_a_line_says_which_ranks_have_died_and_how_the_block_continues():
    screen = Screen()

    def lost(ranks, block, n_alive, n_ranks):
        return ev.RanksLost(time_s=3.0, ranks=ranks, block=block, team=0, n_alive=n_alive, n_ranks=n_ranks)

    assert losses_text(screen.ledger) == ""
    (line,) = screen(lost([3], 1, 4, 3))
    assert line.endswith("rank 3 of block 1 died; the block continues with 3 ranks, 1 spare")
    (line,) = screen(lost([5, 6], 1, 2, 0))
    assert line.endswith("ranks 5 and 6 of block 1 died; the block is spare, because its last 2 cannot train")
    screen(lost([7], 2, 1, 1), lost([8, 9, 10], 3, 0, 0))
    assert losses_text(screen.ledger) == (
        "Died: ranks 3, 5 and 6 of block 1 (the block is spare, because its last 2 cannot train); rank 7 of block 2 ("
        "the block continues with 1 rank); ranks 8, 9 and 10 of block 3 (the block is lost)."
    )
