import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing

import pytest

import nnlo_opt
from nnlo_opt.cli import main
from nnlo_opt.core.base.errors import EXIT_WRONG_REQUEST
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.run_lock import RunLock
from tests.helpers.launcher import BIN
from tests.helpers.stories import START, assigned, completed, finished, suggested, trial, write_journal

STARTED = START.replaced(identity={"direction": "min", "figure_of_merit": "1 - val_acc"})
EVENTS = [STARTED, *trial(0, 0.25), ev.RunCompleted(time_s=3.0, reason="all 1 trials are done")]


@pytest.fixture
def run(tmp_path):
    """Writes a journal of these events; returns the run directory."""
    return lambda events=EVENTS: write_journal(tmp_path, events)


def files_of(path):
    return {p.name: p.read_bytes() for p in path.iterdir()}


def test_show_prints_the_table_and_how_the_run_stands_and_writes_nothing(run, printed):
    path = run()
    before = files_of(path)
    text = printed("show", path)
    assert "Figure of merit: 1 - val_acc, minimised." in text
    for words in ("figure of merit", "train s  x\n", "0.25", "best", "Finished (all 1 trials are done): 1 complete."):
        assert words in text
    assert files_of(path) == before


def test_show_knows_from_the_owner_whether_anybody_is_at_work(run, tmp_path, printed):
    assert "Not finished: 1 in progress when it was interrupted." in printed("show", run(EVENTS[:-3]))
    with closing(RunLock(tmp_path, 0.0)):
        assert "Not finished: 1 running." in printed("show", tmp_path)


def long_run():
    """60 trials, of which the best is the last; the first has failed, on rank 2, after two epochs."""
    events = [START.replaced(identity={"direction": "max", "figure_of_merit": "val_acc"}, settings={"block_size": 2})]
    for n in range(60):
        events += [suggested(n, {"rate": 1.0 / (n + 1), "kind": "abc"[n % 3]}), assigned(n, n)]
        if n:
            events += [finished(n, n / 100, metrics={"val_loss": 1.0}, n_epochs=2), completed(n, n / 100)]
            continue
        for epoch in (1, 2):
            report = {"metrics": {"val_loss": 0.5 / epoch}, "figure_of_merit": 0.1 * epoch}
            events.append(ev.EpochEnded(time_s=2.0, assignment=0, epoch=epoch, **report))
        where = {"traceback": "Traceback:\n  net.py, line 3\n", "world_rank": 2, "host": "h"}
        events.append(ev.AssignmentFailed(time_s=3.0, assignment=0, reason="ValueError: no", **where))
        events.append(ev.TrialFailed(time_s=3.0, trial=0, reason="ValueError: no"))
    return events


def numbers(text):
    return [int(line.split()[0]) for line in text.splitlines() if line.split()[:1] and line.split()[0].isdecimal()]


@pytest.mark.parametrize(
    ("options", "first", "n_rows"),
    [
        ([], [59, 58, 57], 40),
        (["--top", "2"], [59, 58], 2),
        (["--all"], [0, 1, 2], 60),
        (["--sort", "rate", "--all"], [59, 58, 57], 60),
        (["--sort", "kind"], [0, 3, 6], 60),
        (["--top", "4", "--sort", "p:kind"], [57, 58, 56], 4),
        (["--sort", "figure_of_merit"], [59, 58, 57], 60),
        (["--sort", "m:val_loss"], [0, 1, 2], 60),
    ],
    ids=str,
)
def test_show_prints_the_trials_asked_for_in_the_order_asked_for(run, options, first, n_rows, printed):
    shown = numbers(printed("show", run(long_run()), *options))
    assert (shown[: len(first)], len(shown)) == (first, n_rows)


def test_show_prints_all_that_is_known_of_a_trial(run, monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", "80")
    path = run(long_run())
    text = printed("show", path, "--trial", "0")
    assert all(len(line) <= 80 for line in text.splitlines() if str(path) not in line)
    for words in (
        "Trial 0: failed, 2.0 s.\nReason: ValueError: no",
        "Parameters:\n  rate  1\n  kind  a\n",
        "Metrics:\n  val_loss  0.25\n",
        f"Rank 2 on h (`{path}/logs/rank-00002.log`):\nTraceback:\n  net.py, line 3\n",
    ):
        assert words in text, words
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "1", "1", "2", "1.0", "3.0", "2", "0.2", "failed"] in rows
    assert [row for row in rows if row[2:] and row[3:] in (["0.5000"], ["0.2500"])] == [
        ["0", "1", "0.1", "0.5000"],
        ["0", "2", "0.2", "0.2500"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trial", "60"], "60, but"),
        (["--sort", "speed"], "a column of results.csv. Received: speed; it has trial, state"),
        (["--top", "0"], "`--top` must be"),
        (["b"], "Received: b."),
    ],
    ids=str,
)
def test_show_refuses_what_a_run_does_not_have(run, options, words, refused):
    assert words in refused("show", run(long_run()), *options)


@pytest.mark.parametrize("events", [[], EVENTS[:1]], ids=["an empty journal", "no trial"])
def test_a_run_that_has_hardly_begun_can_be_shown_and_reported(run, events, printed):
    path = run(events)
    assert "no trial" in printed("show", path)
    printed("report", path)
    assert json.loads((path / "summary.json").read_text())["best"] is None


def test_report_writes_both_files_from_the_journal_alone(run, printed):
    path = run()
    (path / "results.csv").write_text("old")
    journal = (path / "journal.jsonl").read_bytes()
    assert " of 1 trial to" in printed("report", path)
    assert (path / "results.csv").read_text().splitlines()[1].startswith("0,complete,0.25,")
    assert json.loads((path / "summary.json").read_text())["best"]["trial"] == 0
    assert (path / "journal.jsonl").read_bytes() == journal


@pytest.mark.parametrize("name", ["show", "report"])
def test_a_damaged_journal_is_refused_in_one_sentence_and_left_as_it_is(run, name, refused):
    path = run()
    (path / "journal.jsonl").write_bytes((path / "journal.jsonl").read_bytes()[7:])
    before = files_of(path)
    assert "damaged in line 1" in refused(name, path)
    assert files_of(path) == before


@pytest.mark.proof
def test_report_writes_figures_into_the_folder_that_is_named(run, tmp_path, printed):
    path = run()
    assert f"Wrote figures as PNG and PDF to `{path / 'figures'}`: history, " in printed("report", path, "--figures")
    printed("report", path, "--figures", str(tmp_path / "paper"))
    assert files_of(tmp_path / "paper") == files_of(path / "figures"), "the same run gives the same bytes"


def test_a_run_without_trials_has_no_figures(run, printed):
    assert "none, because no trial is complete" in printed("report", run([STARTED]), "--figures")


def test_a_report_that_cannot_be_written_is_refused_in_one_sentence(run, refused):
    path = run()
    (path / "results.csv").mkdir()
    assert "must be readable and writable" in refused("report", path)


def report_of(run, *words):
    """Report a run as somebody who may not write where the permissions do not say it, which root otherwise may."""
    powers = "-dac_override,-dac_read_search"
    humble = ["setpriv", f"--inh-caps={powers}", f"--bounding-set={powers}"] * (os.geteuid() == 0)
    command = [*humble, str(BIN / "nnlo-opt"), "report", *map(str, (run, *words))]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_a_run_that_one_may_only_read_is_reported_elsewhere(run, tmp_path_factory):
    path, out = run(), tmp_path_factory.mktemp("mine") / "deep"
    before = files_of(path)
    path.chmod(0o555)
    try:
        refused, done = report_of(path), report_of(path, "--out", out)
    finally:
        path.chmod(0o755)
    assert refused.returncode == EXIT_WRONG_REQUEST
    assert f"`nnlo-opt report {path} --out FOLDER`" in " ".join(refused.stderr.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert f"of 1 trial to `{out}`" in " ".join(done.stdout.split())
    assert {"results.csv", "summary.json", "report.html"} == {place.name for place in out.iterdir()}
    assert files_of(path) == before


def test_a_report_replaces_neither_another_run_nor_a_file(run, tmp_path_factory, refused, printed):
    path, place = run(), tmp_path_factory.mktemp("elsewhere")
    other = place / "other"
    shutil.copytree(path, other)
    before = files_of(other)
    assert "must not replace the files of another run" in refused("report", path, "--out", other)
    assert files_of(other) == before
    (place / "file").touch()
    assert "`--out` must be a folder" in refused("report", path, "--out", place / "file")
    printed("report", path, "--out", path)
    assert (path / "report.html").is_file()


# ---------------------------------------------------------------- spaces

SPACE = """
from nnlo_opt.space import Categorical, Integer, Ordinal, Real, When
ranges = [
    Ordinal([16, 32, 64], name="width", likely=32),
    Real(0, 1, step=0.25, name="dropout"),
    Categorical(["sgd", "adam"], name="optimizer"),
    Integer(1, 3, name="n", condition=When("optimizer", "sgd")),
]
def feasible(parameters):
    return parameters["width"] * parameters.get("n", 1) <= 64
"""


@pytest.fixture
def space(here):
    """Writes a space; returns what to call it."""

    def write(text=SPACE):
        (here / "mine.py").write_text(text)
        return "mine.py"

    return write


def test_space_prints_a_row_a_parameter_and_how_many_points_there_are(space, printed):
    lines = printed("space", space()).splitlines()
    assert lines[2].split() == ["name", "kind", "range", "prior", "step", "likely", "values", "only", "when"]
    assert lines[4].split() == ["width", "Ordinal", "16,", "32,", "64", "32", "3"]
    assert lines[5].split() == ["dropout", "Real", "0", "to", "1", "uniform", "0.25", "5"]
    assert lines[7].split() == ["n", "Integer", "1", "to", "3", "uniform", "3", "optimizer", "is", "'sgd'"]
    assert "Constraint: `feasible` of mine.py" in lines
    # 3 * 5 * (3 + 1) less width * n > 64: 32 * 3, 64 * 2, 64 * 3.
    assert "Points: 60, of which 45 are feasible" in lines


def test_space_leaves_out_the_columns_that_nothing_stands_in(space, printed):
    text = printed("space", space("from nnlo_opt.space import Real\nranges = [Real(0, 1, name='x')]\n"))
    assert text.splitlines()[2].split() == ["name", "kind", "range", "prior"]
    assert "Points: infinitely many\n" in text
    skopt = "from skopt.space import Real\nr = [Real(0, 1, name='x')]\ndef feasible(p): return p['x'] < 0.5\n"
    text = printed("space", space(skopt))
    n_feasible = int(text.split("Points: infinitely many; ")[1].split(" of 1,000 drawn")[0])
    assert 450 < n_feasible < 550


def test_space_draws_the_points_asked_for(space, printed):
    text = printed("space", space(), "--samples", "10", "--fix", "optimizer=adam")
    *_, head, _, width, dropout, optimizer = text.splitlines()
    assert head.split() == ["9", "10"]
    assert optimizer.split() == ["optimizer", "adam", "adam"]
    assert width.split()[0] == "width"
    assert dropout.split()[0] == "dropout"
    assert " n " not in text
    assert printed("space", space(), "--samples", "3") == printed("space", space(), "--samples", "3")
    assert printed("space", space(), "--samples", "3") != printed("space", space(), "--samples", "3", "--seed", "1")


def test_space_warns_of_a_training_option_that_does_not_exist(space, printed):
    text = (
        "from nnlo_opt.space import Real\nr = [Real(0.1, 1, name='train.learn_rate'), Real(0, 1, name='train.batch')]\n"
    )
    said = printed("space", space(text))
    assert "Received: 'train.learn_rate'. Did you mean `train.learning_rate`?" in said
    assert said.count("Warning") == 1


def test_a_parameter_that_is_not_in_a_point_is_a_dash(space, printed):
    text = printed("space", space(), "--samples", "8")
    values = {line.split()[0]: line.split()[1:] for line in text.splitlines()[-4:]}
    assert [value == "-" for value in values["n"]] == [value == "adam" for value in values["optimizer"]]


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        ([], SPACE, "MODULE"),
        (["mine.py", "--samples", "many"], SPACE, "`--samples`"),
        (["gone.py"], SPACE, "gone.py"),
        (["mine.py"], "1 / 0", "mine.py, line 1, ZeroDivisionError"),
        (["mine.py"], "x = 1", "must define a search space"),
        (["mine.py"], SPACE.replace('"sgd")),', '"sdg")),'), "must name values that `optimizer` can have"),
        (["mine.py"], SPACE.replace("<= 64", "<= 0"), "all 60 points were refused"),
        (["mine.py"], SPACE.replace("<= 64", ""), "must return True or False"),
        (["mine.py", "--fix", "width=17"], SPACE, "`--fix width=`"),
        (["mine.py", "--fix", "width"], SPACE, "NAME=VALUE"),
        (["mine.py", "--fix", "n=1", "--fix", "n=2"], SPACE, "one value"),
        (["mine.py", "--samples", "-1"], SPACE, "`--samples` must be"),
        (["mine.py", "--seed", "-1"], SPACE, "`--seed` must be"),
    ],
)
def test_a_space_that_is_none_is_refused_in_one_sentence(space, arguments, text, words, refused):
    space(text)
    assert words in refused("space", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "`COMMAND` is required. `nnlo-opt --help` lists"),
        (["dance"], "`COMMAND` must be one of show, report, best-model, space, repair"),
        (["shwo"], "Received: shwo. Did you mean `show`?"),
        (["repair"], "`RUN_DIRECTORY` is required. `nnlo-opt repair --help` lists"),
        (["report", "a", "b"], "Received: b. `nnlo-opt report --help` lists"),
        (["show", "a", "--top"], "`--top` must be followed by a value. `nnlo-opt show --help` lists"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_left_with_code_2_and_a_sentence(arguments, words, refused):
    assert words in refused(*arguments)


def test_the_version_is_said(printed):
    assert printed("--version") == f"nnlo_opt {nnlo_opt.__version__}\n"


def test_a_table_that_is_piped_into_a_reader_that_has_left_makes_no_traceback(run):
    path = run()
    show = "from nnlo_opt.cli.main import tool; tool()"
    process = subprocess.Popen(
        [sys.executable, "-c", show, "show", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait()
    process.stderr.close()


@pytest.mark.parametrize(
    ("around", "command", "words"),
    [
        ("{} >&-", "tool list .", "Standard output must be open."),
        ("{} > /dev/full", "tool list .", "write its output and files. Received: No space left on device."),
        ("PYTHONUNBUFFERED=1 {} > /dev/full", "get_data --help", "write its output and files. Received: No space"),
        ("ulimit -n 20; {}", "optimization_driver --model mnist", "must be allowed 64 open files. Received: 20"),
        *(
            pytest.param(*case, marks=pytest.mark.proof)
            for case in (
                ("{} >&-", "training_driver --help", "Standard output must be open."),
                ("{} > /dev/full", "build_model --help", "No space left"),
                ("PYTHONUNBUFFERED=1 {} > /dev/full", "tool --version", "No space left"),
                ("PYTHONUNBUFFERED=1 {} > /dev/full", "training_driver --help", "No space left"),
                ("{} > /dev/full", "optimization_driver --help", "No space left"),
                ("{} 2>&-", "tool show nowhere", ""),
                ("ulimit -n 20; {}", "tool launch -- OptimizationDriver", "must be allowed 64 open files"),
                ("ulimit -n 20; {}", "horovodrun -np 2 true", "must be allowed 64 open files"),
            )
        ),
    ],
)
def test_a_command_without_output_or_with_few_files_is_refused_in_a_sentence(tmp_path, around, command, words):
    function, *words_of = command.split()
    program = f"from nnlo_opt.cli import main; main.{function}()"
    line = around.format(shlex.join([sys.executable, "-c", program, *words_of]))
    line = f"unset PYTHONUNBUFFERED; {line}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == EXIT_WRONG_REQUEST
    assert words in done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize("command", [main.tool, main.training_driver, main.get_data])
def test_a_command_in_a_folder_that_was_removed_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys, command):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == EXIT_WRONG_REQUEST
    assert "one that was removed" in capsys.readouterr().err
