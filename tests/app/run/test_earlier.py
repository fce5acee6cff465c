"""Studies of Optuna and tables as measurements with which a search begins."""

import csv
import math
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.app.reporting.results import write_results
from nnlo_opt.app.run.start.earlier import observations_of_runs, read_earlier
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.tools.export.exporter import make_exporter
from tests.helpers import effort
from tests.helpers.exported import SPACE, story
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, trial, write_journal

IDENTITY = RunIdentity(figure_of_merit="val_loss", direction="max")
OURS = Space([Real(0, 1, name="x"), Integer(1, 9, name="n"), Categorical([None, "a", 2], name="c")])


def exported(tmp_path, tool, name, n_fold=1):
    events = story(n_fold)
    ledger = Ledger(events)
    if not tool:
        (tmp_path / name).mkdir()
        write_journal(tmp_path / name, events)
        return ledger
    make_exporter(tool, SafePath(tmp_path) / name, "run").take(events, ledger)
    return ledger


@pytest.mark.parametrize("n_fold", [1, 3])
@pytest.mark.parametrize(
    ("tool", "name"),
    [("", "run"), ("csv", "csv/trials.csv"), pytest.param("optuna", "o.log", marks=pytest.mark.needs("optuna"))],
)
def test_what_was_exported_comes_back_as_it_was(tmp_path, tool, name, n_fold):
    ledger = exported(tmp_path, tool, name.partition("/")[0], n_fold)
    observations, lines = observations_of_runs([tmp_path / name], IDENTITY, SPACE)
    complete = [trial for trial in ledger.trials if trial.figure_of_merit is not None]
    assert [observation["point"] for observation in observations] == [trial.point for trial in complete]
    assert [observation["value"] for observation in observations] == [trial.figure_of_merit for trial in complete]
    errors = [trial.standard_error for trial in complete]
    assert [observation["std"] for observation in observations] == (errors if n_fold == 1 else pytest.approx(errors))
    assert lines == [f"Warm start from `{tmp_path / name}`: 3 of 3 complete trials are used."]


#: texts for which spreadsheets have a meaning of their own, and all others
TEXTS = st.one_of(st.text("=+-@\t\r\n'\",;a1\uff1d", min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))


@settings(max_examples=effort.examples(50), deadline=None)
@given(texts=st.lists(TEXTS.filter(lambda text: text != "-1"), min_size=1, max_size=4, unique=True))
def test_no_text_in_a_table_is_a_formula_and_each_comes_back_as_it_was(tmp_path_factory, texts):
    folder, space = (
        tmp_path_factory.mktemp("run"),
        Space([Categorical([*texts, "-1"], name="=c"), Real(-9, 9, name="x")]),
    )
    points = [{"=c": text, "x": -0.5} for text in texts]
    events = [START.replaced(identity={"direction": "max", "search_space": space.to_json()})]
    for number, point in enumerate(points):
        suggested, *others = trial(number, -0.25)
        events += [suggested.replaced(point=point), *others]
    write_results(folder, Ledger(events))
    observations, _ = observations_of_runs([folder / "results.csv"], IDENTITY, space)
    assert [observation["point"] for observation in observations] == points
    with (folder / "results.csv").open(newline="") as file:
        rows = [*csv.reader(file)]
    begun = {cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))}
    assert begun == {"-0.5", "-0.25"}


def table(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    return tmp_path / "t.csv"


@pytest.mark.parametrize("mark", ["", "\ufeff"])  # with which Excel begins a file
def test_a_table_of_ones_own_needs_a_figure_and_parameters(tmp_path, mark):
    rows = "figure_of_merit,p:x,p:n,p:c,p:old,note\n0.5,0.25,3,a,1,\n0.25,1,4,,2,b\n1,0.5,77,2,3,\n2,0.5,1,b,3,\n"
    observations, lines = observations_of_runs([table(tmp_path, mark + rows)], IDENTITY, OURS)
    assert observations == [
        {"point": {"x": 0.25, "n": 3, "c": "a"}, "value": 0.5, "std": None, "feasible": True},
        {"point": {"x": 1.0, "n": 4, "c": None}, "value": 0.25, "std": None, "feasible": True},
    ]
    assert [line.partition("`: ")[2] for line in lines] == [
        "`old` is not a parameter here and is ignored.",
        "1 of 4 trials skipped: `n` is outside Integer(1, 9).",
        "1 of 4 trials skipped: `c` is outside Categorical([None, 'a', 2]).",
        "2 of 4 complete trials are used.",
    ]


def test_figures_of_a_table_say_which_trials_keep_the_bounds_and_what_has_none_is_told(tmp_path):
    names = "figure_of_merit,p:x,p:n,p:c,feasible,m:size,m:acc"
    rows = f"{names}\n0.5,0.25,3,a,True,9,0.5\n0.4,0.5,3,a,False,,\n0.3,1,4,a,,2,1\n"
    identity = RunIdentity(figure_of_merit="val_loss", direction="max", constraints=["size<5"])
    observations, lines = observations_of_runs([table(tmp_path, rows)], identity, OURS)
    assert [(o["feasible"], o.get("outcomes")) for o in observations] == [
        (False, {"size": 9.0}),
        (False, None),
        (True, {"size": 2.0}),
    ]
    assert lines[0].endswith(": 1 of 3 trials have no `m:size`, so only their feasibility counts.")
    unbounded, lines = observations_of_runs([table(tmp_path, rows)], IDENTITY, OURS)
    assert not any("outcomes" in observation for observation in unbounded)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its columns are none"),
        ("figure_of_merit,x\n1,2\n", "its columns are figure_of_merit, x"),
        ("figure_of_merit,p:x\nhigh,2\n", "could not convert string to float: 'high'"),
        ("figure_of_merit,p:x\nnan,2\n", "a figure_of_merit of nan ±"),
        ("figure_of_merit,figure_of_merit_std,p:x\n1,nan,2\n", "a figure_of_merit of 1.0 ± nan"),
        ("figure_of_merit,n_folds,p:x\n1,inf,2\n", "over inf folds"),
        ("figure_of_merit,p:x\n\xff,2\n", "could not convert string"),
        ("p:x,figure_of_merit\n1,2\n3\n", "row 2 below the names has a different number of cells"),
        ("figure_of_merit,p:x\n0,5,1\n", "row 1 below the names has a different number of cells"),
    ],
)
def test_a_table_without_these_is_refused(tmp_path, text, words):
    with pytest.raises(ConfigurationError, match=r"must have the columns of results\.csv") as refused:
        read_earlier(table(tmp_path, text))
    assert words in str(refused.value)


@pytest.mark.needs("optuna")
class TestStudies:
    """Studies that Optuna itself has made."""

    def study(self, tmp_path, kind, name="s", **options):
        import optuna

        def objective(trial):
            trial.suggest_float("x", 0, 1)
            trial.suggest_int("n", 1, 5)
            trial.suggest_categorical("c", [None, "a"])
            if trial.number == 2:
                raise optuna.TrialPruned
            return trial.number / 4

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        path = tmp_path / f"study.{kind}"
        storage = f"sqlite:///{path}"
        if kind == "log":
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        options = options or {"direction": "maximize"}
        study = optuna.create_study(storage=storage, study_name=name, **options)
        if "directions" not in options:
            study.optimize(objective, n_trials=4)
        return path, study

    @pytest.mark.parametrize("kind", ["log", "db"])
    def test_a_study_is_read_from_a_journal_or_from_sqlite(self, tmp_path, kind):
        path, study = self.study(tmp_path, kind)
        complete = [trial for trial in study.trials if trial.value is not None]
        wanted = [{"point": trial.params, "value": trial.value, "std": None, "feasible": True} for trial in complete]
        for place in [path, f"{path}:s", *([f"sqlite:///{path}", f"sqlite:///{path}:s"] if kind == "db" else [])]:
            observations, lines = observations_of_runs([place], IDENTITY, OURS)
            assert observations == wanted
            assert lines == [f"Warm start from `{place}`: 3 of 3 complete trials are used."]

    @pytest.mark.parametrize("kind", ["log", "db"])
    def test_attributes_and_values_that_mean_other_things_there_are_ignored(self, tmp_path, kind):
        path, study = self.study(tmp_path, kind)
        stds = [("5", 0.5), (5, "big"), ([5], {}), (5, math.nan), (5, -1), (math.inf, math.inf), (5, 0.5)]
        for number, (n_folds, std) in enumerate(stds):
            trial = study.ask()
            trial.set_user_attr("n_folds", n_folds)
            trial.set_user_attr("figure_of_merit_std", std)
            study.tell(trial, math.inf if number == 5 else 1.0)
        assert [observation["std"] for observation in read_earlier(path).observations] == [None] * 8 + [0.25]

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ("delete from trial_values where trial_id = 2", ""),
            ("delete from study_directions", "a study of one objective"),
            ("drop table trials", "no such table: trials"),
            ("drop table studies", "no such table: studies"),
            ("update trial_params set distribution_json = '{'", "JSONDecodeError"),
            ("update trial_params set param_value = 'x'", "ValueError"),
            ("update trials set state = 'ODD'", "ODD"),
            (slice(4096, None), "database disk image is malformed"),
            (slice(16, None), "file is not a database"),
        ],
    )
    def test_a_damaged_sqlite_file_is_refused_in_a_sentence(self, tmp_path, damage, words):
        path, _ = self.study(tmp_path, "db")
        if isinstance(damage, slice):
            content = bytearray(path.read_bytes())
            content[damage] = bytes(len(content[damage]))
            path.write_bytes(content)
        else:
            with closing(sqlite3.connect(path)) as base, base:
                base.execute(damage)
        if words:
            check_refused(words, read_earlier, path)
        else:
            assert len(read_earlier(path).observations) == 2  # the trial without a value is left out

    def test_studies_that_cannot_be_compared_are_refused(self, tmp_path):
        path, _ = self.study(tmp_path, "log")
        with pytest.raises(ConfigurationError, match=r"with max, but this run has min\. Leave it out"):
            observations_of_runs([path], IDENTITY.replaced(direction="min"), OURS)
        self.study(tmp_path, "log", "two", directions=["minimize", "maximize"])
        check_refused("it has `s`, `two`; write", read_earlier, path)
        check_refused("it has `s`, `two`; write", read_earlier, f"{path}:three")
        with pytest.raises(ConfigurationError, match=r"a study of one objective\. Received: .* with 2"):
            read_earlier(f"{path}:two")

    def test_a_figure_of_another_name_is_refused(self, tmp_path):
        exported(tmp_path, "optuna", "o.log")
        with pytest.raises(ConfigurationError, match="the same figure of merit"):
            observations_of_runs([tmp_path / "o.log"], IDENTITY.replaced(figure_of_merit="1 - val_acc"), SPACE)

    @pytest.mark.parametrize("place", ["sqlite:///none.db", "none.log:study", "text.log", "mysql://nowhere.invalid/db"])
    def test_what_is_no_study_is_refused_in_a_sentence(self, here, place):
        (here / "text.log").write_text("hello\n")
        with pytest.raises(
            ConfigurationError, match=r"must name (an Optuna study that can be read|one study .* has none)"
        ):
            read_earlier(place)
        assert not (here / "none.db").exists()
