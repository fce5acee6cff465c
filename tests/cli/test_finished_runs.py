"""Commands for runs that are over: best, list, compare, clean."""

import json
import os
import shlex
from contextlib import closing

import pytest
import yaml

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.reporting.results import read_ledger, write_results
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_WRONG_REQUEST
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.run_lock import RunLock
from tests.helpers.stories import START, failed, trial, write_journal

COMMAND = ["OptimizationDriver", "--model", "mnist", "--epochs", "2", "--train-data", "a.list", "--val-data", "b.list"]
IDENTITY = {
    "direction": "min",
    "seed": 0,
    "figure_of_merit": "1 - val_acc",
    "model": {"name": "mnist", "sha256": "0"},
    "data": {"n_train": 5, "n_validation": 5},
    "search_space": {"parameters": [{"name": "x", "low": 0, "high": 9}]},
}
COMPLETED = ev.RunCompleted(time_s=9.0, reason="all 2 trials are done")


def started(identity=None, **settings):
    made = {"command_line": COMMAND, "plan": {"num_iterations": 2}, "versions": {"numpy": "2"}, **settings}
    return START.replaced(identity=IDENTITY | (identity or {}), settings=made)


def write_run(run, events, reports=True):
    """Write journal, config.json and reports of a run, and weights with a checkpoint of every trial."""
    run.mkdir(parents=True)
    write_journal(run, events)
    for number in range(len(read_ledger(run).trials)):
        fold = run / f"trials/{number:04d}/fold0"
        (fold / "checkpoint-1").mkdir(parents=True)
        (fold / "checkpoint-1/master.npz").write_bytes(b"x" * 1000)
        (fold / "weights.npz").write_bytes(b"x" * 500)
    if reports:
        (run / "config.json").write_text(json.dumps({**events[0].settings, **events[0].identity}))
        write_results(run, read_ledger(run))
    return run


EVENTS = [started(), *trial(0, 0.25), *trial(1, 0.125), COMPLETED]


# ---------------------------------------------------------------- best


def test_the_best_trial_is_read_by_scripts(tmp_path, printed):
    run = write_run(tmp_path / "a run", EVENTS)
    found = json.loads(printed("best", run))
    assert (found["trial"], found["figure_of_merit"], found["parameters"]) == (1, 0.125, {"x": 1})
    assert (found["figure"], found["direction"], found["epochs"], found["model"]) == ("1 - val_acc", "min", 1, None)
    assert found["weights"] == [str(run / "trials/0001/fold0/weights.npz")]
    assert yaml.safe_load(printed("best", run, "--as", "yaml")) == found


def test_the_command_that_trains_it_again_is_one_that_is_understood(tmp_path, printed):
    run = write_run(tmp_path / "a: run", EVENTS)
    words = shlex.split(printed("best", run, "--as", "command"))
    assert words[:4] == ["mpirun", "-np", "2", "TrainingDriver"]
    options = driver_options("TrainingDriver", [*words[4:], "--epochs", "7"])
    assert (options.point, options.training.epochs, options.data.pooled) == ({"x": 1}, 7, True)
    assert "Training again trial 1 of" in options.remarks[-1]


def test_of_several_objectives_the_best_is_the_pareto_set(tmp_path, printed):
    events = [started({"objectives": ["val_loss:min", "n_weights:min"]})]
    for number, (loss, n_weights) in enumerate([(0.1, 9.0), (0.2, 5.0), (0.3, 7.0)]):
        *begin, completed = trial(number, loss)
        values = {"val_loss": loss, "n_weights": n_weights}
        events += [*begin, completed.replaced(objectives=values, objectives_std=dict.fromkeys(values, 0.0))]
    run = write_run(tmp_path / "run", events)
    assert [found["trial"] for found in json.loads(printed("best", run))["pareto"]] == [0, 1]
    assert len(printed("best", run, "--as", "command").splitlines()) == 2


@pytest.mark.parametrize(
    ("events", "words", "sentence"),
    [
        ([started(), trial(0)[0]], [], "with 1 trial, none of them complete"),
        ([started({"data": None}), *trial(0)], ["--as", "command"], "trials of an objective"),
        ([started(command_line=["script.py"]), *trial(0)], ["--as", "command"], "a run of script.py"),
    ],
)
def test_a_run_without_a_best_trial_says_so(tmp_path, events, words, sentence, refused):
    run = write_run(tmp_path / "run", events)
    assert sentence in refused("best", run, *words)


@pytest.mark.parametrize("name", ["best", "best-model", "ensemble", "show", "report"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, name, refused):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        sentence = refused(name, path)
        assert f"A run directory must hold a journal.jsonl. Received: `{path}`" in sentence
        assert "checkpoints/" in sentence


def test_a_run_is_named_by_its_path_or_its_name_else_is_the_newest(here, capsys, printed, refused):
    for at_s, name in enumerate(["new", "old"]):
        write_run(here / "checkpoints" / name, EVENTS if name == "new" else EVENTS[:7])
        os.utime(here / "checkpoints" / name / "journal.jsonl", (2e9 - at_s, 2e9 - at_s))
    (here / "old").mkdir()  # something else of the same name
    for word in ("old", "checkpoints/old", str(here / "checkpoints/old")):
        assert json.loads(printed("best", word))["figure_of_merit"] == 0.25
    for words in (["status", "--json"], ["show"], ["report"], ["best"], ["watch"]):
        assert tool.main(words) == EXIT_OK
        assert capsys.readouterr().err == "The newest run: `checkpoints/new`.\n"
    with closing(RunLock(here / "checkpoints/old", 0.0)):
        assert tool.main(["stop", "--wait", "0"]) == EXIT_FAILURE  # nobody answers
    assert capsys.readouterr().err == "The newest run at work: `checkpoints/old`.\n"
    assert "no run at work in `checkpoints`" in refused("stop")
    for command in ("enqueue", "clean", "repair"):
        assert "`RUN_DIRECTORY` is required" in refused(command)
    (here / "checkpoints").rename(here / "elsewhere")
    assert "no run in `checkpoints`" in refused("show")
    assert "`checkpoints/old`, which does not" in refused("show", "checkpoints/old")


# ---------------------------------------------------------------- list


def rows_of(text):
    return {line.split()[0]: line.split() for line in text.splitlines() if line and line[0] not in " `"}


def test_runs_are_listed_with_their_state(tmp_path, monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", "80")
    interrupted = ev.RunPreempted(time_s=9.0, reason="SIGUSR1")
    stories = {"finished": EVENTS, "interrupted": [*EVENTS[:-1], interrupted]}
    stories |= dict.fromkeys(("dead", "stopped", "running"), EVENTS[:7])
    for name, events in stories.items():
        write_run(tmp_path / name, events, reports=name != "dead")
    (tmp_path / "running/summary.json").write_text("{}")  # it may be of any content
    (tmp_path / "stopped/run.interrupted").touch()
    for name, text in (("broken", "damaged\nby\nsomething\n"), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_text(text)
    (tmp_path / "lost/trials").mkdir(parents=True)
    with closing(RunLock(tmp_path / "running", 0.0)):
        text = printed("list", tmp_path)
    rows = rows_of(text)
    assert rows["finished"][1:6] == ["Optimization", "mnist", "finished", "2/2", "0.125"]
    assert rows["interrupted"][3:6] == ["interrupted", "2/2", "0.125"]
    assert rows["dead"][3:6] == ["dead", "1/2", "0.25"]
    assert rows["stopped"][3:6] == ["interrupted", "1/2", "0.25"]
    assert rows["running"][3] == "running"
    for name in ("broken", "empty"):
        assert f"`{name}` cannot be read: " in " ".join(text.split())
    assert "lost` has lost its journal.jsonl" in " ".join(text.split())
    assert max(map(len, text.splitlines()[: len(rows)])) <= 80


def test_a_journal_that_is_newer_than_the_reports_counts(tmp_path, printed):
    run = write_run(tmp_path / "run", EVENTS)
    (run / "summary.json").write_text((run / "summary.json").read_text().replace("0.125", "0.5"))
    assert rows_of(printed("list", tmp_path))["run"][5] == "0.5", "the reports are enough"
    os.utime(run / "summary.json", (0, 0))
    assert rows_of(printed("list", tmp_path))["run"][5] == "0.125"


def test_a_folder_without_runs(tmp_path, printed, refused):
    assert printed("list", tmp_path) == f"No runs in `{tmp_path}`.\n"
    assert "Received: " in refused("list", tmp_path / "none")


# ---------------------------------------------------------------- compare


def test_runs_are_compared_by_settings_and_by_results(tmp_path, monkeypatch, printed, refused):
    monkeypatch.setenv("COLUMNS", "80")
    write_run(tmp_path / "one", EVENTS)
    space = {"parameters": [{"name": "x", "low": 0, "high": 99}, {"name": "y", "low": 1, "high": 2}]}
    other = started({"search_space": space, "seed": 7}, command_line=[*COMMAND, "--seed", "7"], versions={"numpy": "3"})
    write_run(tmp_path / "two", [other, *trial(0, 0.25), *trial(1, 0.5)])
    text = printed("compare", tmp_path / "one", tmp_path / "two")
    lines = [line.split() for line in text.splitlines()]
    for row in (
        ["state", "finished", "dead"],
        ["best", "0.125", "0.25"],
        ["trials", "to", "0.25", "1", "1"],
        ["seed", "0", "7"],
        ["numpy", "2", "3"],
        ["y", "-", "low", "1", "high", "2"],
    ):
        assert row in lines
    assert "n_fold" not in text, "what is the same is not shown"
    assert "one: OptimizationDriver --model mnist" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "two runs or more" in refused("compare", tmp_path / "one")


# ---------------------------------------------------------------- clean


def files_of(run):
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()} - {"run.lock"}


@pytest.fixture
def littered(tmp_path):
    """A run of a best trial, a trial that is not, and an open one, with files that kills have left."""
    run = write_run(tmp_path / "runs/run", [*EVENTS[:-1], *trial(2)[:3]])
    (run / "trials/0002/fold0/.checkpoint-2.0123456789ab").mkdir()
    (run / "trials/0002/fold0/.checkpoint-2.0123456789ab/.master.0123456789ab.npz").touch()
    (run / ".results.0123456789ab.csv").touch()
    (run / "report.html").touch()
    os.utime(run / "report.html", (0, 0))
    return run


def test_only_what_can_be_made_again_is_removed_and_only_when_asked(littered, printed):
    before = files_of(littered)
    for words in ([], ["--dry-run"]):
        text = printed("clean", littered, *words)
        assert "1 surplus checkpoint (1 KB), 1 old report (0 B), 2 temporary files (0 B)." in text
        assert "1 KB would be removed. Add `--yes` to remove the files." in text
    assert files_of(littered) == before
    assert "1 KB are removed." in printed("clean", littered.parent, "--yes")
    left = {"trials/0000/fold0/checkpoint-1/master.npz", "report.html", ".results.0123456789ab.csv"}
    left |= {"trials/0002/fold0/.checkpoint-2.0123456789ab/.master.0123456789ab.npz"}
    assert before - files_of(littered) == left
    assert "nothing to remove" in printed("clean", littered)


def test_clean_leaves_what_a_script_has_written_and_its_links(littered, printed):
    own = littered / "trials/0002/files"
    (own / ".checkpoint-9").mkdir(parents=True)
    (own / ".state.0123456789ab.json").touch()
    (own / "data").symlink_to("/no/such/folder")
    save = littered / "trials/0002/fold0/checkpoint-2/rank-0/.state.0123456789ab.json"
    save.parent.mkdir(parents=True)
    save.touch()
    printed("clean", littered, "--yes")
    assert {path.name for path in own.iterdir()} == {".checkpoint-9", ".state.0123456789ab.json", "data"}
    assert save.exists()


def test_links_of_a_killed_script_are_removed_and_those_of_others_are_not(tmp_path, printed):
    scripts = {"kind": "links", "start": str(tmp_path), "names": ["data"], "own": []}
    run = write_run(tmp_path / "run", [started(scripts=scripts), *trial(0), *trial(1)[:3]])
    for number in (0, 1):
        (run / f"trials/000{number}/files").mkdir()
        (run / f"trials/000{number}/files/data").symlink_to(tmp_path / "data")
        (run / f"trials/000{number}/files/latest").symlink_to("version_3")
    # Wrapped at a place that depends on the length of the path.
    assert "1 leftover link" in " ".join(printed("clean", run, "--yes").split())
    left = {str(path.relative_to(run / "trials")) for path in run.glob("trials/*/files/*")}
    assert left == {"0000/files/data", "0000/files/latest", "0001/files/latest"}, "trial 0 has ended in good order"


def test_a_failed_training_keeps_the_checkpoint_that_continues_it(tmp_path, printed):
    run = write_run(tmp_path / "run", [started({"search_space": None}), *trial(0), *failed(1)])
    printed("clean", run, "--yes")
    assert [path.parts[-3] for path in run.glob("trials/*/fold0/checkpoint-1")] == ["0001"]


def test_weights_are_removed_when_that_is_asked_for(littered, printed):
    before = files_of(littered)
    assert "1 weight file (500 B)" in printed("clean", littered, "--keep-weights", "best:1", "--yes")
    assert {path for path in before - files_of(littered) if path.endswith("weights.npz")} == {
        "trials/0000/fold0/weights.npz"
    }


def test_a_run_at_work_and_a_damaged_one_are_left_alone(littered, capsys):
    damaged = littered.parent / "damaged"
    (damaged / "trials").mkdir(parents=True)
    (damaged / "journal.jsonl").write_text("damaged\nby\nsomething\n")
    before = files_of(littered.parent)
    with closing(RunLock(littered, 0.0)):
        assert tool.main(["clean", str(littered.parent), "--yes"]) == EXIT_WRONG_REQUEST
    text = " ".join(capsys.readouterr().out.split())
    assert "run`: at work, left alone." in text
    assert "damaged`: left alone." in text
    assert before <= files_of(littered.parent) | {"run/run.lock"}
    (damaged / "journal.jsonl").unlink()
    (damaged / "journal.jsonl").mkdir()  # a run that cannot be read
    assert tool.main(["clean", str(littered.parent), "--yes"]) == EXIT_WRONG_REQUEST
    text = " ".join(capsys.readouterr().out.split())
    assert "damaged`: left alone." in text
    assert "run`: 1 surplus checkpoint" in text
    assert tool.main(["clean", str(littered), "--yes", "--dry-run"]) == EXIT_WRONG_REQUEST
