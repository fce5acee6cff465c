import importlib.util
from contextlib import closing

import pytest

from nnlo_opt.cli import tool
from nnlo_opt.export.tables import CsvTables
from nnlo_opt.trials.run_lock import RunLock
from tests.helpers.exported import story
from tests.helpers.stories import write_journal


def export(run, *words):
    return tool.main(["export", str(run), *words])


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return write_journal(tmp_path / "run", story())


def test_a_run_is_written_to_its_own_directory_or_to_another_place(run, tmp_path, capsys):
    assert export(run, "--to", "csv") == 0
    assert capsys.readouterr().out == f"Wrote 7 trials of `{run}` to `{run / 'csv'}`.\n"
    assert export(run, "--to", "csv", "--out", str(tmp_path / "a" / "b")) == 0
    assert (tmp_path / "a" / "b" / "trials.csv").read_bytes() == (run / "csv" / "trials.csv").read_bytes()


@pytest.mark.needs("optuna")
def test_the_command_that_shows_the_export_is_printed(run, capsys):
    assert export(run, "--to", "optuna") == 0
    assert capsys.readouterr().out.endswith(f"To look at it:\n    optuna-dashboard {run / 'optuna.log'}\n")
    assert export(run, "--to", "optuna") == 2
    assert "must not replace anything without `--overwrite`" in capsys.readouterr().err
    assert export(run, "--to", "optuna", "--overwrite") == 0


def test_nothing_is_overwritten_unasked_and_never_a_foreign_folder(run, tmp_path, capsys):
    assert export(run, "--to", "csv") == 0
    (run / "csv" / "folds.csv").write_text("old")
    assert export(run, "--to", "csv") == 2
    assert (run / "csv" / "folds.csv").read_text() == "old"
    assert export(run, "--to", "csv", "--overwrite") == 0
    assert (run / "csv" / "folds.csv").read_text() != "old"
    (tmp_path / "mine").mkdir()
    assert export(run, "--to", "csv", "--out", str(tmp_path / "mine")) == 0  # an empty folder is no loss
    (tmp_path / "mine" / "nnlo_opt-export.json").unlink()
    capsys.readouterr()
    assert export(run, "--to", "csv", "--out", str(tmp_path / "mine"), "--overwrite") == 2
    assert "remove it yourself" in capsys.readouterr().err
    assert (tmp_path / "mine" / "trials.csv").exists()


@pytest.mark.needs("optuna")
def test_what_a_mirror_of_a_run_under_way_writes_is_not_replaced(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    first, *further = story()
    run = write_journal(tmp_path / "run", [first.replaced(settings={"mirror": ["optuna"]}), *further])
    with closing(RunLock(run, 0.0)):
        for words in (
            (),
            ("--overwrite",),
            ("--overwrite", "--out", str(tmp_path / "run" / ".." / "run" / "optuna.log")),
        ):
            assert export(run, "--to", "optuna", *words) == 2
            assert "name another place by `--out`, or wait for the end" in " ".join(capsys.readouterr().err.split())
        assert not (run / "optuna.log").exists()
        assert export(run, "--to", "optuna", "--out", str(tmp_path / "other.log")) == 0
        assert export(run, "--to", "csv") == 0
    assert export(run, "--to", "optuna") == 0


@pytest.mark.needs("optuna")
def test_the_journal_of_a_run_is_not_replaced(run, capsys):
    before = (run / "journal.jsonl").read_bytes()
    assert export(run, "--to", "optuna", "--out", str(run / "journal.jsonl"), "--overwrite") == 2
    assert "must not take the place of a run's journal" in " ".join(capsys.readouterr().err.split())
    assert (run / "journal.jsonl").read_bytes() == before


def test_a_link_is_not_followed(run, tmp_path, capsys):
    (run / "csv").symlink_to(tmp_path / "nowhere")
    assert export(run, "--to", "csv") == 2
    assert "which exists" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_refusal_of_the_other_tool_is_one_sentence(run, monkeypatch, capsys):
    monkeypatch.setattr(CsvTables, "take", lambda *_: {}["name"])
    assert export(run, "--to", "csv") == 1
    assert capsys.readouterr().err.endswith(f"so that `{run / 'csv'}` is not complete: KeyError: 'name'\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "`--to` is required"),
        (["--to", "optun"], "Did you mean `optuna`?"),
    ],
)
def test_wrong_requests_are_refused_in_a_sentence(run, words, sentence, capsys):
    assert export(run, *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", pytest.param("optuna", marks=pytest.mark.needs("optuna"))])
def test_a_place_that_cannot_be_written_to_is_refused_by_its_name(run, form, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert export(run, "--to", form, "--out", str(tmp_path / "file" / "place")) == 2
    said = capsys.readouterr().err
    assert f"Received: `{tmp_path / 'file' / 'place'}` (" in said
    assert "; name another one by `--out`.\n" in said


def test_a_missing_package_is_named_with_its_extra(run, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert export(run, "--to", "mlflow") == 2
    words = "`--to mlflow` needs the package mlflow. It is not installed: `pip install 'nnlo_opt[mlflow]'`"
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (run / "mlruns").exists()


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert export(tmp_path, "--to", "csv") == 2
    assert "must hold a journal.jsonl" in capsys.readouterr().err
