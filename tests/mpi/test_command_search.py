"""Searches of scripts by `--command`, on real ranks."""

import json
import os
import re
import sys

import pytest

from nnlo_opt.reporting.results import read_ledger
from tests.helpers import launcher
from tests.helpers.effort import some_of
from tests.helpers.objective_runs import rows
from tests.helpers.processes import MARK, STUBBORN, marked

pytestmark = pytest.mark.mpi

SPACE = """from nnlo_opt.space import Categorical, Real, When

parameter_range = [Categorical(["one", "$HOME 'x'"], name="kind"), Real(0, 1, name="x", condition=When("kind", "one"))]
"""
TRAIN = """
import json, os, sys

parameters = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert not [name for name in os.environ if name.startswith(("OMPI_", "PMI"))]
assert ("--x" in parameters) == (parameters["--kind"] == "one"), parameters
if os.environ["RANK"] == "0":
    for epoch in (1, 2):
        print(json.dumps({"epoch": epoch, "value": 1.0, "accuracy": 0.5}))
    print(json.dumps({"value": float(parameters.get("--x", 2)), "ranks": int(os.environ["WORLD_SIZE"])}))
"""
#: saves the numbers of its epochs, each with its process
SAVING = """
import json, os, sys, time

from nnlo_opt import report

x, save, last, folder = sys.argv[1:]
rank, path = os.environ["RANK"], "/state-" + os.environ["RANK"]
epochs = json.load(open(last + path)) if last else []
for epoch in range(len(epochs) + 1, 7):
    assert not os.listdir(save)
    epochs.append([epoch, os.getpid()])
    json.dump(epochs, open(save + path, "w"))
    places = [f"{folder}/{os.environ['TORCHELASTIC_RUN_ID']}-{epoch}-{rank}" for rank in (rank, "01".strip(rank))]
    open(places[0], "w").close()
    while not os.path.exists(places[1]):
        time.sleep(0.001)
    if not report(epoch, float(x) + 1 / epoch, checkpoint=True):
        break
    time.sleep(0.05)
json.dump(epochs, open(folder + path, "w"))
"""
#: each way to fail, and one not to
FAILING = """
import os, signal, sys

how = sys.argv[1]
if how == "code":
    sys.exit("the reason")
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "port":
    if not os.path.exists("started"):
        open("started", "w").close()
        sys.exit("[Errno 98] Address already in use")
    print('{"value": 1}')
if how == "nan":
    print('{"value": NaN}')
"""
REASONS = {
    "code": "the command has ended with code 1; its output ends: the reason",
    "killed": "its script was lost 3 times in a row (`--max-attempts`); the last time: the command ",
    "nan": "received: nan",
    "nothing": "the command must print its value as a line",
    "port": "",
}
FAILING_SPACE = f"from nnlo_opt.space import Categorical\nparameter_range = [Categorical({[*REASONS]}, name='how')]\n"
#: one of two processes is killed in the first attempt, as its argument says; the other one fails as it is gone
PEERS = """
import json, os, signal, sys, time

folder, victim = sys.argv[1:3]
path = folder + "/victim"
if os.environ["RANK"] == victim:
    if not os.path.exists(path):
        with open(path + "-", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + "-", path)
        os.kill(os.getpid(), signal.SIGKILL)
else:
    while not os.path.exists(path):
        time.sleep(0.01)
    while os.path.exists(f"/proc/{open(path).read()}"):
        time.sleep(0.001)
    if not os.path.exists(path + "-seen"):
        open(path + "-seen", "w").close()
        sys.exit("my peer is gone")
print(json.dumps({"value": 1}))
"""
#: of one number
LINE = "from nnlo_opt.space import Real\nparameter_range = [Real(0.0, 1.0, name='x')]\n"


def command(folder, script, space, *options):
    """Return the words of a search of a script."""
    (folder / "train.py").write_text(script)
    (folder / "space.py").write_text(space)
    given = {"--command": "python train.py {args}", "--search-space": "space.py", "--checkpoint": "S"}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    return ["OptimizationDriver", *(word for pair in given.items() for word in pair)]


def test_a_script_is_searched_on_every_rank_of_a_block(tmp_path):
    words = command(tmp_path, TRAIN, SPACE, "--block-size", "2", "--num-iterations", "6")
    launcher.run(5, words, tmp_path)
    launcher.check_search(tmp_path / "checkpoints/S", 6)
    for row in rows(tmp_path):
        assert float(row["figure_of_merit"]) == float(row["p:x"] or 2)
        assert row["epochs"] == "2"
    best = min(read_ledger(tmp_path / "checkpoints/S").trials, key=lambda trial: trial.figure_of_merit)
    shown = launcher.run(1, ["nnlo-opt", "best", "checkpoints/S", "--as", "command"], tmp_path).out
    torchrun = "torchrun --standalone --nproc-per-node=2 --no-python"
    assert shown == f"{torchrun} python train.py --kind one --x {best.point['x']!r}\n"


def test_each_way_to_fail_is_a_sentence_and_a_taken_port_is_none(tmp_path):
    given = ("--hyper-opt", "grid", "--command", "python train.py {how}")
    launcher.run(3, command(tmp_path, FAILING, FAILING_SPACE, *given), tmp_path)
    found = {row["p:how"]: row for row in rows(tmp_path)}
    assert found.keys() == REASONS.keys()
    for how, row in found.items():
        assert REASONS[how] in row["reason"]
        assert (row["state"] == "complete") == (how == "port")
    assert found["port"]["figure_of_merit"] == "1.0"


def test_a_killed_script_is_resumed_from_its_last_save(tmp_path):
    text = "python train.py {x} {save} {checkpoint} {folder}"
    options = ("--block-size", "2", "--keep-weights", "best:1", "--num-iterations", "4", "--pruner", "asha")
    more = ("--pruner-max-epochs", "6", "--command", text)
    words = command(tmp_path, SAVING, LINE, *options, *more)
    run = tmp_path / "checkpoints/S"
    job = launcher.start(3, words, tmp_path)
    assert launcher.seen_within(60, lambda: len([e for e in launcher.events_of(run, "EpochEnded") if e["epoch"] > 2]))
    job.kill()
    launcher.run(3, [*words, "--opt-restore"], tmp_path)
    ledger = read_ledger(run)
    assert ledger.n_by_state()["complete"] + ledger.n_by_state()["pruned"] == 4
    best = min((trial for trial in ledger.trials if trial.folds), key=lambda trial: trial.figure_of_merit)
    kept = [path for path in run.glob("trials/*/*/*") if path.parent.name == "files" or path.is_dir()]
    assert {path.relative_to(run / "trials").parts[0] for path in kept} == {f"{best.number:04d}"}
    for rank in "01":
        files = (run / f"trials/{best.number:04d}").glob(f"**/state-{rank}")
        saved, final = (json.loads(file.read_text()) for file in files)
        assert saved == final
        assert [epoch for epoch, _ in saved] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_script_that_is_killed_on_one_rank_of_a_block_is_tried_again_whatever_the_others_die_of(tmp_path, victim):
    given = ("--num-iterations", "1", "--block-size", "2", "--command", f"python train.py {tmp_path} {victim} {{x}}")
    outcome = launcher.run(3, command(tmp_path, PEERS, LINE, *given), tmp_path)
    (row,) = rows(tmp_path)
    assert (row["state"], row["attempt"]) == ("complete", "2")
    (line,) = [line for line in outcome.out.splitlines() if "attempt" in line]
    assert "attempt 2 of 3: the command has ended by SIGKILL" in line
    (lost,) = launcher.events_of(tmp_path / "checkpoints/S", "AssignmentLost")
    assert lost["counts"]


def last_words(outcome):
    """The exit code, and what the last lines of a search say of its end, without the reason and numbers of trials."""
    ends = [line for line in (outcome.out + outcome.err).splitlines() if line.startswith(("Search ", "No trial "))]
    return outcome.code, [re.sub(r"\d+", "#", line.partition("The first reason: ")[0]) for line in ends]


@pytest.mark.parametrize("n_ranks", some_of([1, 3]))
def test_a_script_whose_trials_all_fail_ends_as_an_objective_does(tmp_path, n_ranks):
    for folder in ("script", "objective"):
        (tmp_path / folder).mkdir()
    objective = "def objective(x):\n    raise ValueError(f'bad {x}')\n\n\nobjective.parameter_range = parameter_range\n"
    (tmp_path / "objective/objective.py").write_text(LINE + objective)
    script = "import sys\nprint('begins', flush=True)\nraise ValueError(f'bad {sys.argv[1]}')\n"
    given = ("--hyper-opt", "random", "--max-failures", "2", "--num-iterations", "4")
    words = command(tmp_path / "script", script, LINE, *given, "--command", "python train.py {x}")
    of_objective = ["OptimizationDriver", "--model", "objective.py", "--checkpoint", "S", *given]
    found = launcher.run(n_ranks, words, tmp_path / "script", code=None)
    assert last_words(found) == last_words(launcher.run(n_ranks, of_objective, tmp_path / "objective", code=None))
    assert found.code == 1
    (reason,) = [line for line in found.err.splitlines() if line.startswith("No trial succeeded. The first reason: ")]
    assert re.search(r"ValueError: bad 0\.\d+; all of it in `trials/0000/output-0.log`$", reason)
    assert "begins" in (tmp_path / "script/checkpoints/S/trials/0000/output-0.log").read_text()


def test_a_resume_counts_the_attempts_at_a_script_that_were_killed(tmp_path):
    script = f"""
import os, signal, sys, time
if os.path.exists({str(tmp_path / "again")!r}):
    open({str(tmp_path / "waits")!r}, "w").close()
    time.sleep(600)
os.rename({str(tmp_path / "first")!r}, {str(tmp_path / "again")!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    words = command(tmp_path, script, LINE, "--num-iterations", "1", "--max-attempts", "2")
    (tmp_path / "first").touch()
    job = launcher.start(3, words, tmp_path)
    assert launcher.seen_within(60, (tmp_path / "waits").exists)
    job.kill()
    (tmp_path / "again").rename(tmp_path / "first")
    outcome = launcher.run(3, [*words, "--opt-restore"], tmp_path, code=1)
    assert "its script was lost 2 times in a row (`--max-attempts`)" in rows(tmp_path)[0]["reason"]
    lost = launcher.events_of(tmp_path / "checkpoints/S", "AssignmentLost")
    assert [event["counts"] for event in lost] == [True, False, True]
    assert "attempt" in outcome.out


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_pruned_script_that_does_not_want_to_end_leaves_nothing(tmp_path, monkeypatch, n_ranks):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    reports = 'import sys\nfor n in range(1, 4):\n    print(\'{"epoch": %d, "value": %s}\' % (n, sys.argv[1]))\n'
    script = f"{reports}if float(sys.argv[1]) > 0.5:\n    exec({STUBBORN!r})\n"
    options = ("--pruner", "median", "--pruner-min-trials", "1", "--hyper-opt", "random", "--num-iterations", "4")
    more = ("--start-point", "x=0.1", "--command", "python train.py {x}", "--block-size", str(n_ranks - 1 or 1))
    launcher.run(n_ranks, command(tmp_path, script, LINE, *options, *more), tmp_path)
    assert {row["state"] for row in rows(tmp_path)} == {"complete", "pruned"}
    assert not marked(number)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_script_that_takes_too_long_is_ended_without_a_report(tmp_path, n_ranks):
    script = "import sys, time\nprint('{\"value\": 1.0}')\ntime.sleep(600 if float(sys.argv[1]) > 0.5 else 0)\n"
    options = ("--trial-timeout", "3", "--hyper-opt", "random", "--num-iterations", "3", "--start-point", "x=0.1")
    more = ("--command", "python train.py {x}", "--block-size", str(n_ranks - 1 or 1))
    launcher.run(n_ranks, command(tmp_path, script, LINE, *options, *more), tmp_path, timeout_s=40)
    for row in rows(tmp_path):
        assert (row["state"] == "failed") == (float(row["p:x"]) > 0.5)
        assert ("--trial-timeout" in row["reason"]) == (row["state"] == "failed")


def test_nothing_is_left_of_a_script_when_mpirun_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    job = launcher.start(3, command(tmp_path, STUBBORN, SPACE), tmp_path)
    logs = (tmp_path / "checkpoints/S/trials").glob
    assert launcher.seen_within(60, lambda: b"born" in b"".join(log.read_bytes() for log in logs("*/output-0.log")))
    job.process.kill()
    job.process.wait()
    assert launcher.seen_within(60, lambda: not marked(number))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--command", "python train.py {arg}"), "Did you mean `args`?"),
        (("--command", "pythn train.py {args}"), "'pythn', which is neither in PATH"),
        (("--epochs", "3"), "`--epochs`; leave it out"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(tmp_path, options, said):
    outcome = launcher.run(1, command(tmp_path, TRAIN, SPACE, *options), tmp_path, code=2)
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_another_command_or_file_is_another_search(tmp_path):
    words = [*command(tmp_path, TRAIN, SPACE, "--num-iterations", "1"), "--opt-restore"]
    launcher.run(1, words, tmp_path)
    other = [*words[:2], f"{sys.executable} train.py {{args}}", *words[3:]]
    assert "`--command` differs: it was python train.py {args}" in launcher.run(1, other, tmp_path, code=2).err
    (tmp_path / "train.py").write_text("")
    assert "the file `train.py` differs" in launcher.run(1, words, tmp_path, code=2).err
