import importlib.util
from contextlib import closing

import pytest

from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.tools.export.tables import CsvTables
from tests.helpers.exported import story
from tests.helpers.stories import write_journal


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return write_journal(tmp_path / "run", story())


def test_a_run_is_written_to_its_own_directory_or_to_another_place(run, tmp_path, printed):
    assert printed("export", run, "--to", "csv") == f"Wrote 7 trials of `{run}` to `{run / 'csv'}`.\n"
    printed("export", run, "--to", "csv", "--out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "trials.csv").read_bytes() == (run / "csv" / "trials.csv").read_bytes()


@pytest.mark.needs("optuna")
def test_the_command_that_shows_the_export_is_printed(run, printed, refused):
    assert printed("export", run, "--to", "optuna").endswith(
        f"To look at it:\n    optuna-dashboard {run / 'optuna.log'}\n"
    )
    assert "must not replace anything without `--overwrite`" in refused("export", run, "--to", "optuna")
    printed("export", run, "--to", "optuna", "--overwrite")


def test_nothing_is_overwritten_unasked_and_never_a_foreign_folder(run, tmp_path, printed, refused):
    printed("export", run, "--to", "csv")
    (run / "csv" / "folds.csv").write_text("old")
    refused("export", run, "--to", "csv")
    assert (run / "csv" / "folds.csv").read_text() == "old"
    printed("export", run, "--to", "csv", "--overwrite")
    assert (run / "csv" / "folds.csv").read_text() != "old"
    (tmp_path / "mine").mkdir()
    printed("export", run, "--to", "csv", "--out", tmp_path / "mine")  # an empty folder is no loss
    (tmp_path / "mine" / "nnlo_opt-export.json").unlink()
    assert "remove it yourself" in refused("export", run, "--to", "csv", "--out", tmp_path / "mine", "--overwrite")
    assert (tmp_path / "mine" / "trials.csv").exists()


@pytest.mark.needs("optuna")
def test_what_a_mirror_of_a_run_under_way_writes_is_not_replaced(tmp_path, printed, refused):
    (tmp_path / "run").mkdir()
    first, *further = story()
    run = write_journal(tmp_path / "run", [first.replaced(settings={"mirror": ["optuna"]}), *further])
    with closing(RunLock(run, 0.0)):
        for words in ((), ("--overwrite",), ("--overwrite", "--out", tmp_path / "run" / ".." / "run" / "optuna.log")):
            assert "name another place by `--out`, or wait for the end" in refused(
                "export", run, "--to", "optuna", *words
            )
        assert not (run / "optuna.log").exists()
        printed("export", run, "--to", "optuna", "--out", tmp_path / "other.log")
        printed("export", run, "--to", "csv")
    printed("export", run, "--to", "optuna")


@pytest.mark.needs("optuna")
def test_the_journal_of_a_run_is_not_replaced(run, refused):
    before = (run / "journal.jsonl").read_bytes()
    assert "must not take the place of a run's journal" in refused(
        "export", run, "--to", "optuna", "--out", run / "journal.jsonl", "--overwrite"
    )
    assert (run / "journal.jsonl").read_bytes() == before


def test_a_link_is_not_followed(run, tmp_path, refused):
    (run / "csv").symlink_to(tmp_path / "nowhere")
    assert "which exists" in refused("export", run, "--to", "csv")
    assert not (tmp_path / "nowhere").exists()


def test_a_refusal_of_the_other_tool_is_one_sentence(run, monkeypatch, printed):
    monkeypatch.setattr(CsvTables, "take", lambda *_: {}["name"])
    assert printed("export", run, "--to", "csv", code=1).endswith(
        f"so that `{run / 'csv'}` is not complete: KeyError: 'name'\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"), [([], "`--to` is required"), (["--to", "optun"], "Did you mean `optuna`?")]
)
def test_wrong_requests_are_refused_in_a_sentence(run, words, sentence, refused):
    assert sentence in refused("export", run, *words)


@pytest.mark.parametrize("form", ["csv", pytest.param("optuna", marks=pytest.mark.needs("optuna"))])
def test_a_place_that_cannot_be_written_to_is_refused_by_its_name(run, form, tmp_path, refused):
    (tmp_path / "file").touch()
    said = refused("export", run, "--to", form, "--out", tmp_path / "file" / "place")
    assert f"Received: `{tmp_path / 'file' / 'place'}` (" in said
    assert "; name another one by `--out`.\n" in said


def test_a_missing_package_is_named_with_its_extra(run, monkeypatch, refused):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = "`--to mlflow` needs the package mlflow. It is not installed: `pip install 'nnlo_opt[mlflow]'`"
    assert words in refused("export", run, "--to", "mlflow")
    assert not (run / "mlruns").exists()


def test_what_is_no_run_is_refused(tmp_path, refused):
    assert "must hold a journal.jsonl" in refused("export", tmp_path, "--to", "csv")
