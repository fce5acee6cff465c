"""Searches of scripts by `--command`, on real ranks."""

import json
import os
import sys

import pytest

from nnlo_opt.reporting.results import read_ledger
from nnlo_opt.trials.journal import read_events
from tests.helpers import launcher
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
#: keeps its own state in its folder, counts its epochs from 0, and waits after two of them
SNAPSHOTS = """
import os, sys, time

path = sys.argv[1] + "/snapshot"
start = int(open(path).read()) if os.path.exists(path) else 0
for epoch in range(start, 4 if os.environ["RANK"] == "0" else 0):
    if epoch == 2:
        while not os.path.exists("go"):
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
    "code": "the command has ended with code 1; its output ends: the reason",
    "killed": "the command has ended by SIGKILL",
    "nan": "received: nan",
    "nothing": "it has printed none; its output ends: Epoch 1 of 2 / loss 0.5 / {'eval_loss': 0.25}",
    "port": "",
    "strange": "",
}
FAILING_SPACE = f"from nnlo_opt.space import Categorical\nparameter_range = [Categorical({[*REASONS]}, name='how')]\n"
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
    assert shown == f"{torchrun} python train.py --kind=one --x={best.point['x']!r}\n"


def test_each_way_to_fail_is_a_sentence_and_a_taken_port_is_none(tmp_path):
    given = ("--hyper-opt", "grid", "--command", "python train.py {how}")
    launcher.run(3, command(tmp_path, FAILING, FAILING_SPACE, *given), tmp_path)
    found = {row["p:how"]: row for row in rows(tmp_path)}
    assert found.keys() == REASONS.keys()
    for how, row in found.items():
        assert REASONS[how] in row["reason"]
        assert (row["state"] == "complete") == (not REASONS[how])
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
