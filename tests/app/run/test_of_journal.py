"""A journal that another has changed runs no code: every option of every driver is tried with code of each kind."""

import shlex

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.driver_parsers import DRIVERS
from nnlo_opt.app.commands.earlier_runs import model_of_run
from nnlo_opt.app.run.options.kinds import EARLIER, PATH, RUN_PATH, TEXT
from nnlo_opt.app.run.options.of_journal import GUARDED, names_code, without_code
from nnlo_opt.app.run.options.table import BY_NAME
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.space.constraint import Constraint
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.space import Real, Space
from tests.helpers.pages import REPOSITORY
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, suggested, trial, write_journal

#: an update rule, a search, a pruner, a space, a figure of merit and a model; it leaves a mark when it is executed
EVIL = """
from pathlib import Path
Path(__file__).with_name("executed").touch()
from nnlo_opt.space import Real
from nnlo_opt.core.update_rules.downpour import Downpour as Rule
parameter_range = [Real(0, 1, name="x")]
def feasible(p): return True
def figure(fold): return 0
def get_model(x=0): raise SystemExit
def get_loss(): return "mse"
"""
OPTIONS = {option.name: (program, option) for program, (_, given) in DRIVERS.items() for option in given}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes the journal of a search whose last start has this command line, and this point; returns the run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)

    def write(program, words, point=None):
        settings = {"command_line": [program, *words], "folder": str(tmp_path)}
        identity = {"direction": "min", "search_space": {"parameters": []}, "data": {"files": []}}
        identity["model"] = {"name": "net", "source": str(tmp_path / "evil.py"), "sha256": "0"}
        events = [START.replaced(identity=identity, settings=settings), *trial(0)]
        events[1] = suggested(0, point or {"x": 0.5})
        place = tmp_path / f"run-{len([*tmp_path.iterdir()])}"
        place.mkdir()
        return write_journal(place, events)

    return write


#: values that would execute the file, or a command, if somebody followed them
HOSTILE = ("evil.py:Rule", "evil.py:figure", "evil.py", "evil", "evil:figure", "touch executed {} {}", "x=evil.py:Rule")


def made_of(read, *arguments):
    """Return the options that a command takes from a journal, as text; an empty one if it refuses them."""
    try:
        return repr(read(*arguments))
    except ConfigurationError:
        return ""


WITH_VALUES = [name for name, (_, option) in OPTIONS.items() if option.kind.action not in ("store_true", "switch")]


@pytest.mark.many
@pytest.mark.parametrize("name", WITH_VALUES)
def test_no_option_of_a_journal_executes_what_it_names(run, tmp_path, name):
    program, option = OPTIONS[name]
    for value in HOSTILE:
        journal = run(program, ["--model", "mnist", option.flag, value, "--train-data", "a.list"])
        made = made_of(driver_options, "TrainingDriver", ["--from-run", f"{journal}:0"])
        made += made_of(model_of_run, journal, None)
        assert name in GUARDED or not names_code(name, value) or value not in made
        assert not (tmp_path / "executed").exists(), f"{option.flag} {value}"


def test_every_option_of_free_text_says_whether_it_names_code():
    """A new option of text or a path stands here, or has the kind `CODE`: then the gate knows it."""

    def of_kind(kind):
        return {name for name, (_, option) in OPTIONS.items() if kind in (option.kind, option.kind.each)}

    assert of_kind(RUN_PATH) == {"checkpoint"}
    assert of_kind(PATH) == {
        *("train_data", "val_data", "test_data", "cache_data", "log_file", "keep_generator_in"),  # data
        "try_output",  # the output of a script
        "options",  # of a start; what it says is in the journal itself
    }
    assert of_kind(EARLIER) == {"warm_start"}
    assert of_kind(TEXT) == {
        *("features_name", "labels_name", "sample_weights_name", "loss", "fold_by"),  # names in files, and of losses
        *("optimizer", "worker_optimizer", "lr_schedule", "early_stopping", "target_metric", "exchange", "staleness"),
        *("trial_name", "restore", "from_run"),  # runs
        *("report_pattern", "result_pattern", "no_decay"),  # regular expressions
    }


CODE = {name for name, option in BY_NAME.items() if names_code(name, "evil.py:Rule")}


def test_the_page_on_security_lists_every_option_that_names_code():
    assert {
        *("model", "example", "search_space", "figure_of_merit", "mode", "hyper_opt", "pruner"),
        *("command", "copy_command", "on_end"),
        *("backend", "mirror"),
    } == CODE
    page = (REPOSITORY / "docs/reference/security.md").read_text()
    table = page[page.index("## What is executed") : page.index("## What a journal may have executed")]
    assert not [BY_NAME[name].flag for name in CODE if f"`{BY_NAME[name].flag}" not in table]


def test_a_rule_of_a_run_is_refused_until_it_is_named_again(run, tmp_path):
    journal = run("TrainingDriver", ["--model", "mnist", "--mode", "evil.py:Rule", "--train-data", "a.list"])
    again = ["--from-run", f"{journal}:0"]
    sentence = check_refused("name it again by `--mode FILE.py:CLASS`", driver_options, "TrainingDriver", again)
    assert f"`--mode evil.py:Rule` of `{journal}`" in sentence
    assert not (tmp_path / "executed").exists()
    assert driver_options("TrainingDriver", [*again, "--mode", "easgd"]).training.mode == "easgd"
    assert not (tmp_path / "executed").exists()
    rule = f"{tmp_path / 'evil.py'}:Rule"
    assert driver_options("TrainingDriver", [*again, "--mode", rule]).training.mode == rule
    assert (tmp_path / "executed").exists(), "the user has named it"


def test_a_command_of_a_run_that_is_left_out_is_said(run):
    words = shlex.split("--model mnist --train-data a.list --cache-data c --copy-command 'cp {} {}'")
    options = driver_options("TrainingDriver", ["--from-run", f"{run('TrainingDriver', words)}:0"])
    assert options.data.copy_command is None
    assert "`--copy-command` of the run is not executed: give it again if it is needed." in options.remarks


def test_a_rule_in_a_point_of_a_journal_is_not_executed(run, tmp_path):
    journal = run("TrainingDriver", ["--model", "mnist", "--train-data", "a.list"], {"train.mode": "evil.py:Rule"})
    check_refused("evil.py:Rule", driver_options, "TrainingDriver", ["--from-run", f"{journal}:0"])
    assert not (tmp_path / "executed").exists()


def test_a_constraint_of_a_journal_is_not_executed_by_a_simulation(tmp_path, printed):
    space = Space([Real(-1, 1, name="x")], Constraint(sha256="0", source=str(tmp_path / "evil.py"), example={"x": 0.5}))
    (tmp_path / "evil.py").write_text(EVIL)
    identity = RunIdentity.of({"direction": "min", "search_space": space.to_json(), "figure_of_merit": "f"})
    (tmp_path / "other").mkdir()
    write_journal(tmp_path / "other", [START.replaced(identity=identity.plain), *trial(0), *trial(1)])
    printed("simulate", "--run", tmp_path / "other", "--blocks", "1")
    assert not (tmp_path / "executed").exists()


def test_what_names_no_code_is_taken_over():
    given = {"batch": "50", "mode": "easgd", "hyper_opt": "sobol", "pruner": "asha", "model": "net.py", "loss": "mse"}
    assert without_code(given, "run", needed=("mode",)) == given
