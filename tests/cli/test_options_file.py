"""`--options run.yaml`: the options of a file, as if they were on the command line."""

from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.tools.launcher.launch_command import DriverCommand
from tests.helpers.refusals import check_refused

TEXT = """
model: mnist
epochs: 7
batch: 64
lr: 1e-3            # YAML takes this for text
optimizer-params: {momentum: 0.9}
overlap: false
no_shuffle: true
verify_data: false
walltime: 3:55:00   # and this for a number of base 60
n-fold: null
objective: [val_acc:max, "n_weights:min"]
start_point:
  - {dropout: 0.5, kind: "a,b"}
  - n=3
warm_start: [a, b]
fix: {dense1: 32, kind: a}
"""
WORDS = [
    "--model=mnist", "--epochs=7", "--batch=64", "--learning-rate=1e-3", "--optimizer-params={'momentum': 0.9}",
    "--no-overlap", "--no-shuffle", "--walltime=14100", "--objective=val_acc:max", "--objective=n_weights:min",
    "--start-point=dropout=0.5,kind='a,b'", "--start-point=n=3", "--warm-start=a", "--warm-start=b",
    "--fix=dense1=32", "--fix=kind=a",
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    """Writes a file of options; returns its path."""

    def write(text=TEXT):
        (tmp_path / "run.yaml").write_text(text)
        return str(tmp_path / "run.yaml")

    return write


def without_words(options: Options) -> dict:
    return {name: getattr(options, name) for name in Options.__dataclass_fields__ if name != "command_line"}


def test_a_file_gives_what_the_command_line_would_and_is_recorded_in_full(file):
    of_file = driver_options("OptimizationDriver", ["--options", file()])
    assert of_file.command_line == tuple(WORDS)
    assert without_words(of_file) == without_words(driver_options("OptimizationDriver", WORDS))
    assert of_file.search.start_points == ({"dropout": 0.5, "kind": "a,b"}, {"n": 3})


@pytest.mark.parametrize("option", ["--options={}", "--option={}", "--options {}"])
def test_the_command_line_overrules_the_file_wherever_the_file_stands(file, option):
    words = option.format(file()).split()
    options = driver_options(
        "OptimizationDriver", ["--epochs", "2", *words, "--objective", "val_loss:min", "--fix", "x=1"]
    )
    assert options.training.epochs == 2
    assert [str(objective) for objective in options.comparison.objectives] == ["val_loss:min"]
    assert options.fix == {"x": "1"}
    assert not [word for word in options.command_line if word.startswith("--option")]


def test_values_alone_overrule_the_file_too_and_other_drivers_take_one(file):
    path = file("model: x.py\ntrain_data: t\nval_data: v\nepochs: 3\nrestore: true\n")
    options = driver_options("TrainingDriver", ["mnist", "a.list", "b.list", "--options", path])
    assert (options.model, options.data.train_data, options.training.epochs) == ("mnist", Path("a.list"), 3)
    assert options.run.restore
    words = ["--options", file("latent_size: 50\ntrain_data: t\nval_data: v\n")]
    assert driver_options("MPIGDriver", words).point["latent_size"] == 50


def test_a_launcher_starts_its_driver_with_the_options_in_full(file):
    command = DriverCommand.parse(["--", "OptimizationDriver", "--options", file("model: mnist\nepochs: 3\n")])
    assert command.arguments == ("--model=mnist", "--epochs=3")


#: lists within lists, each nine times by its alias: 9^9 texts
BOMB = "- &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"- &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"warm_start:\n{BOMB}", "run.yaml` (more than 10 aliases, which may stand for any number of values)"),
        ("epohcs: 3", "run.yaml` (`--options`) must be an option of the command without `--`. Received: epohcs. Did"),
        ("options: other.yaml", "Received: options."),
        ("yes: 3", "Received: True."),
        ("batch: [1, 2]", "`batch` in `"),
        ("synchronous: 3", "must be true or false. Received: 3."),
        ("batch: true", "`--batch` must be a whole number of samples"),
        ("batch: {a: 1}", "`--batch` must be"),
        ("batch: 1\nepochs: 2\nbatch: 3", "` (`--options`) once. Received: batch a second time."),
        ("learning_rate: 1\nlearning-rate: 3", "Received: learning-rate a second time."),
        ("- batch", "which holds list. Write a line `epochs: 10`"),
        ("", "which holds NoneType"),
        ("a: [", "must name a file of YAML"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_its_name(file, text, words):
    sentence = check_refused(words, driver_options, "OptimizationDriver", ["--options", file(text)])
    assert "run.yaml" in sentence or "`--batch`" in sentence


def test_a_file_that_is_missing_is_refused(tmp_path):
    words = "none.yaml` (No such file or directory)"
    check_refused(words, driver_options, "OptimizationDriver", ["--options", str(tmp_path / "none.yaml")])
    check_refused("not a regular file", driver_options, "OptimizationDriver", ["--options", "/dev/null"])
