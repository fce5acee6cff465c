"""Searches of scripts by `--command`, on real ranks."""

import json
import os
import re
import subprocess
import sys

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.trials.journal import read_events
from tests.helpers import launcher
from tests.helpers.effort import some_of
from tests.helpers.nvidia_driver import built_driver
from tests.helpers.objective_runs import rows
from tests.helpers.processes import MARK, STUBBORN, marked
from tests.helpers.stories import write_journal

pytestmark = pytest.mark.mpi

SPACE = """from nnlo_opt.space import Categorical, Real, When

parameter_range = [Categorical(["one", "$HOME 'x'"], name="kind"), Real(0, 1, name="x", condition=When("kind", "one"))]
"""
TRAIN = """
import json, os, sys

parameters = dict(word.split("=", 1) for word in sys.argv[1:])
assert not [name for name in os.environ if name.startswith(("OMPI_COMM", "PMI", "SLURM_NTASKS", "SLURM_PROCID"))]
assert (os.environ["OMPI_MCA_btl"], os.environ.get("SLURM_JOB_ID")) == ("^ofi", os.environ.get("NUMBER_OF_JOB"))
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
#: keeps its own state in its folder, counts its epochs from 0, and waits after two of them
SNAPSHOTS = """
import os, sys, time

path = sys.argv[1] + "/snapshot"
start = int(open(path).read()) if os.path.exists(path) else 0
for epoch in range(start, 4 if os.environ["RANK"] == "0" else 0):
    if epoch == 2:
        while not os.path.exists(os.path.dirname(__file__) + "/go"):
            time.sleep(0.01)
    print("Epoch %d | loss %s" % (epoch, 1 / (epoch + 1)))
    open(path + "-new", "w").write(str(epoch + 1))
    os.replace(path + "-new", path)
"""
#: takes all forms of its arguments
ANY_FORM = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--x", type=float, default=2.0)
print('{"value": %s}' % parser.parse_args().x)
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
if how == "nothing":
    print("Epoch 1 of 2", "loss 0.5", "{'eval_loss': 0.25}", sep="\\n")
if how == "strange":
    for line in ("[" * 30000, '{"value": ' * 30000, '{"value": 1%s}' % ("0" * 399), "x" * 50_000_000):
        print(line)
    print('{"epoch": 1, "value": 1, "other": 1%s}' % ("0" * 399))
"""
REASONS = {
    "code": "the command ended with code 1; its output ends: the reason",
    "killed": "its script was lost 3 times in a row (`--max-attempts`); the last time: the command ",
    "nan": "received: nan",
    "nothing": "it printed none; its output ends: Epoch 1 of 2 / loss 0.5 / {'eval_loss': 0.25}",
    "port": "",
    "strange": "",
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
        while not os.path.exists(path + "-seen"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
elif not os.path.exists(path + "-seen"):
    while not os.path.exists(path):
        time.sleep(0.01)
    open(path + "-seen", "w").close()
    while os.path.exists(f"/proc/{open(path).read()}"):
        time.sleep(0.001)
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


def test_a_script_is_searched_on_every_rank_of_a_block(tmp_path, monkeypatch):
    for name, value in {"SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_JOB_ID": "77", "NUMBER_OF_JOB": "77"}.items():
        monkeypatch.setenv(name, value)
    words = command(tmp_path, TRAIN, SPACE, "--block-size", "2", "--num-iterations", "6")
    launcher.run(3, words, tmp_path)
    launcher.check_search(tmp_path / "checkpoints/S", 6)
    for row in rows(tmp_path):
        assert float(row["figure_of_merit"]) == float(row["p:x"] or 2)
        assert row["epochs"] == "2"
    best = min(read_ledger(tmp_path / "checkpoints/S").trials, key=lambda trial: trial.figure_of_merit)
    shown = launcher.run(1, ["nnlo-opt", "best", "checkpoints/S", "--as", "command"], tmp_path).out
    torchrun = "torchrun --standalone --nproc-per-node=2 --no-python"
    assert shown == f"{torchrun} python train.py --kind=one --x={best.point['x']!r}\n"


@pytest.mark.proof
def test_each_way_to_fail_is_a_sentence_and_a_taken_port_is_none(tmp_path):
    given = ("--hyper-opt", "grid", "--command", "python train.py {how}")
    launcher.run(3, command(tmp_path, FAILING, FAILING_SPACE, *given), tmp_path)
    found = {row["p:how"]: row for row in rows(tmp_path)}
    assert found.keys() == REASONS.keys()
    for how, row in found.items():
        assert REASONS[how] in row["reason"]
        assert (row["state"] == "complete") == (not REASONS[how])
    assert found["port"]["figure_of_merit"] == "1.0"


@pytest.mark.proof
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


@pytest.mark.proof
@pytest.mark.parametrize("victim", [0, 1])
def test_a_script_that_is_killed_on_one_rank_of_a_block_is_tried_again_whatever_the_others_die_of(tmp_path, victim):
    given = ("--num-iterations", "1", "--block-size", "2", "--command", f"python train.py {tmp_path} {victim} {{x}}")
    outcome = launcher.run(3, command(tmp_path, PEERS, LINE, *given), tmp_path)
    (row,) = rows(tmp_path)
    assert (row["state"], row["attempt"]) == ("complete", "2")
    (line,) = [line for line in outcome.out.splitlines() if "attempt" in line]
    assert "attempt 2 of 3: the command ended by SIGKILL" in line
    (lost,) = launcher.events_of(tmp_path / "checkpoints/S", "AssignmentLost")
    assert lost["counts"]


def last_words(outcome):
    """The exit code, and what the last lines of a search say of its end, without the reason and numbers of trials."""
    ends = [
        line for line in (outcome.out + outcome.err).splitlines() if line.startswith(("Search ", "No trial succeeded"))
    ]
    return outcome.code, [re.sub(r"\d+", "#", line.partition("The first reason: ")[0]) for line in ends]


@pytest.mark.proof
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


@pytest.mark.proof
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


@pytest.mark.proof
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_epochs_of_a_script_that_begin_with_0_are_counted_from_1_in_each_attempt(tmp_path, n_ranks):
    options = ("--block-size", str(n_ranks - 1 or 1), "--num-iterations", "1")
    more = ("--command", "python train.py {folder} {x}")
    pattern = ("--report-pattern", r"Epoch (?P<epoch>\d+) \| loss (?P<value>\S+)")
    words = command(tmp_path, SNAPSHOTS, LINE, *options, *more, *pattern)
    run = tmp_path / "checkpoints/S"
    job = launcher.start(n_ranks, words, tmp_path)
    assert launcher.seen_within(60, lambda: [e["epoch"] for e in launcher.events_of(run, "EpochEnded")] == [1, 2])
    job.kill()
    (tmp_path / "go").touch()
    out = launcher.run(n_ranks, [*words, "--opt-restore"], tmp_path).out
    assert [event["epoch"] for event in launcher.events_of(run, "EpochEnded")] == [1, 2, 3, 4]
    assert "counts its epochs from 0" in out
    (row,) = rows(tmp_path)
    assert (row["epochs"], float(row["figure_of_merit"])) == ("4", 0.25)


@pytest.mark.proof
def test_a_run_of_the_first_version_is_resumed_by_either_form_of_its_arguments(tmp_path):
    words = command(tmp_path, ANY_FORM, SPACE, "--num-iterations", "2")
    launcher.run(1, words, tmp_path)
    run = tmp_path / "checkpoints/S"
    start, *events = read_events((run / "journal.jsonl").read_bytes(), "journal.jsonl")[0]
    settings = {name: value for name, value in start.settings.items() if name != "command"}
    for path in run.glob("journal*"):
        path.unlink()
    write_journal(run, [start.replaced(settings=settings), *events])
    found = []
    for text in (None, "{args}", "{args:words}", "{args}"):
        if text is not None:
            more = [word.replace("{args}", text) for word in words]
            out = launcher.run(1, [*more[:-1], str(2 + len(found)), "--opt-restore"], tmp_path).out
        best = launcher.run(1, ["nnlo-opt", "best", "checkpoints/S", "--as", "command"], tmp_path).out
        found.append((text is not None and "version whose `{args}` wrote" in out, "train.py --kind=" in best))
    assert found == [(False, False), (True, True), (False, False), (False, True)]


@pytest.mark.proof
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


@pytest.mark.proof
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_script_that_takes_too_long_is_ended_without_a_report(tmp_path, n_ranks):
    script = "import sys, time\nprint('{\"value\": 1.0}')\ntime.sleep(600 if float(sys.argv[1]) > 0.5 else 0)\n"
    options = ("--trial-timeout", "3", "--hyper-opt", "random", "--num-iterations", "3", "--start-point", "x=0.1")
    more = ("--command", "python train.py {x}", "--block-size", str(n_ranks - 1 or 1))
    launcher.run(n_ranks, command(tmp_path, script, LINE, *options, *more), tmp_path, timeout_s=40)
    assert {row["state"] for row in rows(tmp_path)} == {"complete", "failed"}
    for row in rows(tmp_path):
        assert (row["state"] == "failed") == (float(row["p:x"]) > 0.5)
        assert ("--trial-timeout" in row["reason"]) == (row["state"] == "failed")


@pytest.mark.proof
def test_nothing_is_left_of_a_script_when_mpirun_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    job = launcher.start(3, command(tmp_path, STUBBORN, SPACE), tmp_path)
    logs = (tmp_path / "checkpoints/S/trials").glob
    assert launcher.seen_within(60, lambda: b"born" in b"".join(log.read_bytes() for log in logs("*/output-0.log")))
    job.process.kill()
    job.process.wait()
    assert launcher.seen_within(60, lambda: not marked(number))


@pytest.mark.proof
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


@pytest.mark.proof
def test_another_command_or_file_is_another_search(tmp_path):
    words = [*command(tmp_path, TRAIN, SPACE, "--num-iterations", "1"), "--opt-restore"]
    launcher.run(1, words, tmp_path)
    other = [*words[:2], f"{sys.executable} train.py {{args}}", *words[3:]]
    assert "`--command` differs: it was python train.py {args}" in launcher.run(1, other, tmp_path, code=2).err
    (tmp_path / "train.py").write_text("")
    assert "the file `train.py` differs" in launcher.run(1, words, tmp_path, code=2).err


@pytest.mark.proof
def test_a_log_that_the_script_writes_ends_no_run_and_is_named(tmp_path):
    script = "import sys\nopen(sys.argv[2], 'a').write(sys.argv[1])\nprint('{\"value\": %s}' % sys.argv[1])\n"
    given = ("--command-folder", "here", "--command", "python train.py {x} run.log", "--num-iterations")
    launcher.run(1, command(tmp_path, script, LINE, *given, "1"), tmp_path)
    done = launcher.run(1, [*command(tmp_path, script, LINE, *given, "2"), "--opt-restore"], tmp_path)
    assert "the command names have changed since the last start; the run continues: `run.log`." in done.out
    launcher.check_search(tmp_path / "checkpoints/S", 2)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("of_task", "placed"),
    [(False, {"0 0 2", "0 1 2"}), (True, {"0 0 1"})],
    ids=["one GPU for all", "one GPU for each"],
)
def test_a_script_sees_the_gpu_that_is_its_own_as_if_alone_on_its_node(tmp_path, monkeypatch, of_task, placed):
    """A batch system may confine each task to a GPU that all of them call 0."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built_driver(tmp_path)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if of_task:
        monkeypatch.setenv("FAKE_GPU_OF_TASK", "1")
    names = ["CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    seen = f"print(*map(os.environ.get, {names}), file=open({str(tmp_path)!r} + '/seen-' + os.environ['RANK'], 'w'))"
    given = ("--command", "python train.py {x}", "--block-size", "2", "--num-iterations", "1")
    script = f"import os\n{seen}\nprint('{{\"value\": 1.0}}')\n"
    launcher.run(3, command(tmp_path, script, LINE, *given), tmp_path)
    assert {(tmp_path / f"seen-{rank}").read_text().strip() for rank in (0, 1)} == placed


#: keeps its state in its working folder, as PyTorch's tutorial of torchrun does: what is there is a snapshot of its own
SNAPSHOT = """
import json, os, sys, time

rank, n_epochs = os.environ["RANK"], 4
begun = json.load(open("snapshot")) if os.path.exists("snapshot") else []
print(f"goes on after {len(begun)} epochs")
assert open("data/points").read() == "data"
open("rank-" + rank, "w").close()
while rank == "0" and not os.path.exists("rank-" + str(int(os.environ["WORLD_SIZE"]) - 1)):
    time.sleep(0.001)
for epoch in range(len(begun) + 1, n_epochs + 1):
    begun.append(sys.argv[1])
    if rank == "0":
        name = "new" if "--whole" in sys.argv else "snapshot"
        with open(name, "w") as file:
            json.dump(begun, file)
        os.replace(name, "snapshot")
        print(json.dumps({"epoch": epoch, "value": 1.0}))
    while epoch == 2 and os.path.exists("hold"):
        time.sleep(0.01)
if rank == "0":
    print(json.dumps({"value": float(sys.argv[1]), "mixed": len({*begun}) - 1}))
"""


def project(folder):
    """A folder in which the script was tried once by hand."""
    (folder / "data").mkdir()
    (folder / "data/points").write_text("data")
    (folder / "train.py").write_text(SNAPSHOT)
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    subprocess.run([sys.executable, "train.py", "0.5"], cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    (folder / "rank-0").unlink()
    assert (folder / "snapshot").exists()


def mixed(folder):
    """Of each trial: how many other trials it went on from, by the metrics of its end."""
    events = launcher.events_of(folder / "checkpoints/S", "AssignmentFinished")
    return [event["metrics"]["mixed"] for event in events]


def left_in(folder):
    return {path.name for path in folder.glob("checkpoints/S/trials/*/files/*")}


@pytest.mark.proof
def test_a_script_with_a_snapshot_in_its_folder_begins_anew_in_each_trial(tmp_path):
    project(tmp_path)
    options = ("--num-iterations", "3", "--command", "python train.py {x} --whole")
    out = launcher.run(1, command(tmp_path, SNAPSHOT, LINE, *options, "--command-own", "snapshot"), tmp_path).out
    launcher.check_search(tmp_path / "checkpoints/S", 3)
    assert mixed(tmp_path) == [0, 0, 0]
    assert "changed meanwhile" not in out
    assert left_in(tmp_path) == {"snapshot", "rank-0"}
    assert json.loads((tmp_path / "snapshot").read_text()) == ["0.5"] * 4


@pytest.mark.proof
def test_a_snapshot_of_a_try_by_hand_that_trials_write_is_named_with_the_remedy(tmp_path):
    project(tmp_path)
    (tmp_path / "snapshot").write_text('["0.5", "0.5"]')
    options = ("--num-iterations", "2", "--command", "python train.py {x}")
    out = launcher.run(1, command(tmp_path, SNAPSHOT, LINE, *options), tmp_path).out
    assert "Trial 0: `snapshot` of the starting folder, which all trials share, changed meanwhile." in out
    assert "`--command-own snapshot` gives each trial its own." in out
    assert mixed(tmp_path) == [1, 1], "this is why the line is printed"


@pytest.mark.proof
@pytest.mark.parametrize("n_ranks", [1, 5])
def test_a_killed_trial_finds_its_own_snapshot_and_no_link_is_left(tmp_path, n_ranks):
    project(tmp_path)
    block = ("--block-size", "2") if n_ranks > 1 else ()
    options = (*block, "--num-iterations", "4", "--command", "python train.py {x} --whole", "--command-own", "snapshot")
    words = command(tmp_path, SNAPSHOT, LINE, *options)
    run = tmp_path / "checkpoints/S"
    (tmp_path / "hold").touch()
    job = launcher.start(n_ranks, words, tmp_path)
    assert launcher.seen_within(60, lambda: len([e for e in launcher.events_of(run, "EpochEnded") if e["epoch"] > 1]))
    job.kill()
    assert "data" in left_in(tmp_path), "a killed attempt cannot remove its links"
    (tmp_path / "hold").unlink()
    out = launcher.run(n_ranks, [*words, "--opt-restore"], tmp_path).out
    launcher.check_search(run, 4)
    assert "the next attempt finds the files that the script had written" in out
    assert mixed(tmp_path) == [0] * 4
    assert "`hold` is no longer in" in out
    assert left_in(tmp_path) == {"snapshot", *(f"rank-{rank}" for rank in range(len(block) or 1))}
    assert "goes on after 2 epochs" in (run / "trials/0000/output-0.log").read_text()


@pytest.mark.proof
def test_weights_that_are_not_kept_are_the_folders_of_scripts(tmp_path):
    project(tmp_path)
    options = ("--num-iterations", "3", "--command", "python train.py {x} --whole", "--command-own", "snapshot")
    out = launcher.run(1, command(tmp_path, SNAPSHOT, LINE, *options, "--keep-weights", "best:1"), tmp_path).out
    assert "has no effect" not in out
    best = min(rows(tmp_path), key=lambda row: float(row["figure_of_merit"]))
    kept = [path.parts[-2] for path in (tmp_path / "checkpoints/S").glob("trials/*/files")]
    assert kept == [f"{int(best['trial']):04d}"]
    assert (tmp_path / "data/points").exists()
