import signal
from pathlib import Path

import pytest

from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_PREEMPTED, EXIT_WRONG_REQUEST
from nnlo_opt.tools.launcher.launch_command import DriverCommand
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.usefixtures("here")

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--checkpoint", "L"]


@pytest.mark.parametrize(
    ("words", "n_before"),
    [
        (["OptimizationDriver"], 0),
        (["/some/bin/OptimizationDriver"], 0),
        (["drivers/OptimizationDriver.py"], 0),
        (["python", "drivers/OptimizationDriver.py"], 1),
        (["python", "-u", "/a/drivers/OptimizationDriver.py"], 2),
    ],
)
def test_a_driver_may_be_named_in_several_ways(words, n_before):
    command = DriverCommand.parse(["--", *words, "--model", "m.py", "--num-iterations", "3"])
    assert command.words[:n_before] == tuple(words[:n_before])
    assert Path(command.words[-1]).name == Path(words[-1]).name
    assert command.arguments == ("--model", "m.py", "--num-iterations", "3")


def test_a_start_has_the_name_that_was_chosen_and_what_the_user_gave_counts_more():
    command = DriverCommand.parse(["OptimizationDriver", "--model", "a/m.py", "--grace", "9"])
    assert command.directory == Path("checkpoints/m-001")
    line = command.line(54.0, again=False)
    assert line[1:] == ["--grace", "54", "--checkpoint", "checkpoints/m-001", "--model", "a/m.py", "--grace", "9"]
    named = DriverCommand.parse(["OptimizationDriver", "--model", "m.py", "--checkpoint", "x/y"])
    assert named.directory == Path("x/y")


@pytest.mark.parametrize("overwrite", ["--overwrite", "--overw"])
def test_a_restart_restores_and_overwrites_nothing(overwrite):
    command = DriverCommand.parse(["OptimizationDriver", "--model", "m.py", "--overlap", overwrite])
    assert overwrite in command.line(1.0, again=False)
    line = command.line(1.0, again=True)
    assert line[-1] == "--opt-restore"
    assert overwrite not in line
    assert "--overlap" in line


def test_a_training_is_restored_by_its_own_option_once():
    command = DriverCommand.parse(["TrainingDriver", "--model", "m.py", "--trial-name", "T"])
    assert command.line(1.0, again=True)[-1] == "--restore"
    command = DriverCommand.parse(["TrainingDriver", "--model", "m.py", "--restore", "T"])
    assert command.directory == Path("checkpoints/T")
    assert command.line(1.0, again=True).count("--restore") == 1


@pytest.mark.parametrize("words", [["MPIDriver", "mnist_arch.json"], ["MPIGDriver", "x.json", "--latent-size", "9"]])
def test_a_driver_of_the_ancestors_is_launched(words):
    command = DriverCommand.parse([*words, "train.list", "test.list", "--loss", "mse"])
    assert command.directory.name.startswith("mnist" if words[0] == "MPIDriver" else "gan")
    assert command.line(1.0, again=True)[-1] == "--restore"


def test_an_existing_run_is_refused_before_anything_starts():
    Path("checkpoints/R").mkdir(parents=True)
    Path("checkpoints/R/journal.jsonl").touch()
    check_refused("already exists. Resume it", DriverCommand.parse, [*DRIVER[:-1], "R"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "3"], "`--` must be followed by a driver (OptimizationDriver, TrainingDriver, MPIDriver, MPIGDriver)"),
        (["-n", "3", "--", "ls"], "`--` must be followed by"),
        (["-np", "0", "--", *DRIVER], "`-n` must be a whole number of ranks, at least 1"),
        (["--mpirun", "no-such-mpirun", "--", *DRIVER], "`--mpirun` must name a command that starts ranks"),
        (["-n", "3", "--", *DRIVER, "--num-iterations", "x"], "`--num-iterations` must be"),
        (
            ["-n", "3", "--", *DRIVER, "--max-restarts=3"],
            "`--max-restarts` is an option of `nnlo-opt launch` and must be",
        ),
        (["--", *DRIVER, "-n", "3"], "`-n` is an option of `nnlo-opt launch` and must be given before `--`"),
        (
            ["-n", "3", "--opt_restore", "--", *DRIVER],
            "`--opt-restore` is an option of the driver and must be given after",
        ),
    ],
)
def test_wrong_requests_start_nothing(tmp_path, words, sentence, refused):
    assert sentence in refused("launch", *words)
    assert not list(tmp_path.iterdir())


#: stands for mpirun: it gives up as often as it is told to, and then says by its code that the request is wrong. Only
#: words of the shell itself: a child would be seen, or not, as a rank that runs
GIVES_UP = """#!/bin/sh
[ "$1" = --version ] && exit 0
echo "ranks $*" >> starts
for n in {turns}; do
    if [ ! -e "turn-$n" ]; then
        : > "turn-$n"
        echo "PRTE: the listener thread failed to start" >&2
        exit 1
    fi
done
exit 2
"""


@pytest.fixture
def own_signals():
    """The launcher hears signals instead of whoever did."""
    signums = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in signums}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def launched_by(tmp_path, n_turns):
    """The exit code of a launcher whose mpirun gives up so often, and the command of each start."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(GIVES_UP.format(turns=" ".join(map(str, range(n_turns)))))
    mpirun.chmod(0o755)
    code = tool.main(["launch", "--mpirun", str(mpirun), "-n", "3", "--", *DRIVER])
    return code, (tmp_path / "starts").read_text().splitlines()


@pytest.mark.usefixtures("own_signals")
def test_a_start_in_which_no_rank_has_begun_is_made_up_for_by_the_same_start(tmp_path, capfd):
    code, starts = launched_by(tmp_path, 2)
    assert code == EXIT_WRONG_REQUEST
    assert len(starts) == 3
    assert len(set(starts)) == 1, "nothing has begun that could be restored"
    said = capfd.readouterr().err
    assert "wrong" not in said, "the ranks have said why"
    assert not Path("checkpoints/L").exists()
    for n in (1, 2):
        assert f"before any rank had begun: once more ({n} of at most 3 times in a row)" in said
    assert "restart" not in said


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(("handed_in", "code"), [("2", EXIT_WRONG_REQUEST), ("75", EXIT_PREEMPTED)])
def test_the_code_that_rank_0_hands_in_counts_though_mpirun_ends_with_0(tmp_path, capfd, handed_in, code):
    (tmp_path / "mpirun").write_text(f'#!/bin/sh\n[ "$1" = --version ] || printf {handed_in} > "$NNLO_OPT_EXIT_CODE"\n')
    (tmp_path / "mpirun").chmod(0o755)
    assert tool.main(["launch", "--mpirun", "./mpirun", "--", *DRIVER]) == code
    assert capfd.readouterr().err == ("" if handed_in == "2" else "Interrupted: no trial had begun.\n")
    assert not Path("checkpoints/L").exists()


@pytest.mark.usefixtures("own_signals")
def test_an_mpirun_that_never_starts_a_rank_is_given_up(tmp_path, capfd):
    code, starts = launched_by(tmp_path, 9)
    assert code == EXIT_FAILURE
    assert len(starts) == 5
    assert "2 starts in a row have added nothing to the journal: giving up" in capfd.readouterr().err
