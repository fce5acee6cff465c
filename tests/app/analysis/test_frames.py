import pandas
import pytest

import nnlo_opt
from nnlo_opt.app.analysis.frames import assignments_frame, epochs_frame, folds_frame, results_frame, trials_frame
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.space import Categorical
from tests.helpers.recorded import REST, events_of, started, two_objectives


def frames_of(events):
    ledger = Ledger(events)
    return {
        "trials": trials_frame(ledger),
        "folds": folds_frame(ledger),
        "epochs": epochs_frame(ledger, events),
        "assignments": assignments_frame(ledger),
    }


def test_the_table_of_trials_has_the_columns_and_values_of_the_results():
    ledger = Ledger(events_of())
    frame, plain = trials_frame(ledger), results_frame(ledger)
    assert list(frame.columns) == list(plain.columns)
    same = frame.astype(object).where(frame.notna(), None)
    assert same.to_dict("records") == plain.astype(object).where(plain.notna(), None).to_dict("records")


def test_a_column_has_the_dtype_of_its_declaration_whatever_is_missing():
    frame = trials_frame(Ledger(events_of()))
    kinds = {"trial": "Int64", "block": "Int64", "figure_of_merit": "float64", "reason": "string"}
    kinds |= {"p:lr": "float64", "p:n": "Int64", "p:act": "object", "p:bias": "boolean", "p:batch": "Int64"}
    assert {name: str(frame[name].dtype) for name in kinds} == kinds
    assert frame["p:n"].tolist() == [8, pandas.NA, pandas.NA, pandas.NA, 64, 1]
    assert list(frame["p:size"].cat.categories) == ["small", "large"]
    assert frame["p:size"].cat.ordered
    assert frame["state"].tolist() == ["complete", "complete", "complete", "failed", "pruned", "complete"]


def test_none_that_was_chosen_is_not_a_parameter_that_is_missing():
    events = [started(), ev.TrialSuggested(time_s=1.0, trial=0, point={"lr": 0.1, "act": None})]
    events.append(ev.TrialSuggested(time_s=1.0, trial=1, point={"lr": 0.1}))
    column = trials_frame(Ledger(events))["p:act"]
    assert column[0] is None
    assert column[1] is pandas.NA


@pytest.mark.parametrize("choices", [[1, 0.5], [2, 1.0], [1, 0.5, True], [1, 0.5, "a"]])
def test_a_choice_of_mixed_numbers_keeps_each_of_them_as_it_is(choices):
    result = nnlo_opt.optimize(
        lambda parameters: float(choices.index(parameters["x"])), {"x": Categorical(choices)}, hyper_opt="grid"
    )
    column = result.to_dataframe()["p:x"]
    tried = [trial.parameters["x"] for trial in result.trials]
    assert [(type(value), value) for value in column] == [(type(value), value) for value in tried]
    assert {(type(value), value) for value in column} == {(type(value), value) for value in choices}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "boolean"),
        ([1, 2], "Int64"),
        ([1, 2.5], "float64"),
        (["a", "b"], "string"),
        ([1, "a"], "object"),
        ([[8, 16], [4]], "object"),
        ([2**70, 1], "object"),
        ([None, 1], "object"),
    ],
)
def test_a_parameter_without_a_declaration_has_the_dtype_of_its_values(values, dtype):
    points = [*({"x": value} for value in values), {}]
    events = [started(search_space=None)]
    events += [ev.TrialSuggested(time_s=1.0, trial=number, point=point) for number, point in enumerate(points)]
    column = trials_frame(Ledger(events))["p:x"]
    assert (str(column.dtype), column.tolist()[:-1]) == (dtype, values)
    assert column.isna().tolist()[-1]


def test_an_epoch_that_was_trained_again_has_its_last_report():
    events = [started(), ev.TrialSuggested(time_s=1.0, trial=0, point={"lr": 0.1, "act": None, **REST})]
    for number, loss in enumerate([0.5, 0.25]):
        place = {"trial": 0, "fold": 0, "block": 1, "team": 0, "n_ranks": 2, "attempt": number + 1}
        events.append(ev.FoldAssigned(time_s=1.0, assignment=number, **place))
        events.append(ev.EpochEnded(time_s=2.0, assignment=number, epoch=1, metrics={"loss": loss}))
        events.append(ev.AssignmentLost(time_s=3.0, assignment=number, reason="rank 3 died"))
    frames = frames_of(events)
    expected = {"trial": 0, "fold": 0, "epoch": 1, "assignment": 1, "time_s": 2.0, "checkpointed": False}
    expected |= {"figure_of_merit": pytest.approx(float("nan"), nan_ok=True), "m:loss": 0.25}
    assert frames["epochs"].to_dict("records") == [expected]
    assert frames["assignments"]["end"].tolist() == ["lost", "lost"]
    assert frames["assignments"]["reason"].tolist() == ["rank 3 died"] * 2


def test_folds_and_epochs_have_their_metrics():
    frames = frames_of(events_of())
    assert frames["folds"].query("trial == 0")["m:val_loss"].tolist() == [0.125, 0.375]
    assert frames["epochs"].query("trial == 0 and fold == 1")["figure_of_merit"].tolist() == [1.0, 0.375]
    assert len(frames["assignments"]) == 12


def test_several_objectives_have_columns():
    frame = trials_frame(Ledger(two_objectives()))
    assert frame["pareto"].tolist() == [True, True, False]
    assert frame["o:n_weights"].tolist() == [1000.0, 10.0, 50_000.0]


@pytest.mark.parametrize(("events", "n_trials"), [([], 0), ([started()], 0), (events_of()[:2], 1)])
def test_tables_of_little_have_their_columns_and_dtypes(events, n_trials):
    whole = frames_of(events_of())
    for name, frame in frames_of(events).items():
        assert len(frame) == (n_trials if name == "trials" else 0)
        known = [column for column in whole[name] if column in frame]
        assert {"trial", "p:lr"} & set(known) >= {"trial"}
        assert frame[known].dtypes.astype(str).equals(whole[name][known].dtypes.astype(str)), name


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("table", ["trials", "folds", "epochs", "assignments"])
def test_a_file_of_parquet_gives_the_same_table_again(table, tmp_path):
    frame = frames_of(events_of())[table]
    frame.to_parquet(tmp_path / "table.parquet")
    again = pandas.read_parquet(tmp_path / "table.parquet")
    mixed = ["p:act"] if table == "trials" else []  # None and texts, which are one type of parquet
    pandas.testing.assert_frame_equal(again.drop(columns=mixed), frame.drop(columns=mixed))
    assert all(again[name].dropna().tolist() == frame[name].dropna().tolist() for name in mixed)
