"""`--timeline`, `--monitor` and the share of a node, under real mpirun."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import launcher, objectives
from tests.helpers.nvidia_driver import built_driver

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

SPACE = """
from nnlo_opt.space import Categorical, Integer

parameter_range = [Integer(8, 32, name="n_units"), Categorical([0.0, 0.5], name="train.warmup_epochs")]
"""
#: what a worker takes of its machine, where it has no GPU
LOAD = {"cpu_percent", "memory_mb", "memory_max_mb"}


def ok(n_ranks: int, command: list[str], folder: Path, digits: Path | None = None) -> launcher.Outcome:
    if digits is not None:
        command = [*command, *launcher.data_of(digits), "--loss", "categorical_crossentropy"]
    return launcher.run(n_ranks, command, folder)


def spans_of(run: Path) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """rank -> name of a track -> its spans, of a timeline that is sound."""
    trace = json.loads((run / "timeline.json").read_text())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    found: dict[int, dict[str, list[dict[str, Any]]]] = {facts["rank"]: {} for facts in trace["otherData"]["ranks"]}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts"} <= event.keys()
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            found[event["pid"]].setdefault(names[event["pid"], event["tid"]], []).append(event)
    for tracks in found.values():
        for spans in tracks.values():
            are_nested(spans)
    return found


def are_nested(spans: list[dict[str, Any]]) -> None:
    """The spans of a track lie one after another or inside each other."""
    ends: list[float] = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        while ends and ends[-1] <= span["ts"] + 1e-3:
            ends.pop()
        assert not ends or span["ts"] + span["dur"] <= ends[-1] + 1e-3, span
        ends.append(span["ts"] + span["dur"])


def labels_of(run: Path) -> dict[int, str]:
    events = json.loads((run / "timeline.json").read_text())["traceEvents"]
    return {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}


def names_of(spans: list[dict[str, Any]]) -> set[str]:
    return {span["name"] for span in spans}


WORKERS_DO = {"look at model and data", "build model, read data", "batch", "gradient", "exchange", "validate"}
MASTERS_DO = {"Initialise", "SendWeights", "SendFence", "SendValidate", "ReportEpoch", "FinishFold"}


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_training_shows_what_every_rank_did_and_took(tmp_path, network, digits, n_ranks):
    (tmp_path / "model.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "model.py", "--epochs", "2", "--checkpoint", "T", "--batch", "50"]
    outcome = ok(n_ranks, [*command, "--timeline", "--monitor", "--thread-validation"], tmp_path, digits)
    run = tmp_path / "checkpoints/T"
    assert f"Timeline: `{Path('checkpoints/T/timeline.json')}`" in outcome.out
    assert "`--thread-validation` changes nothing" in outcome.out
    spans = spans_of(run)
    assert set(spans) == set(range(n_ranks))
    assert names_of(spans[0]["coordinator"]) == {"step"}
    assert names_of(spans[0]["main"]) >= MASTERS_DO
    for rank in range(1, n_ranks) or (0,):
        assert names_of(spans[rank]["main"]) >= WORKERS_DO
        assert n_ranks == 1 or "wait" in names_of(spans[rank]["main"])
    (path,) = run.glob("*_history.json")
    history = json.loads(path.read_text())["history"]
    for worker in ["0:-:-"] if n_ranks == 1 else ["1:1:-", "2:2:-"]:
        assert history[worker].keys() >= LOAD
        assert all(len(history[worker][name]) == 2 for name in LOAD)
        assert 0 < history[worker]["memory_mb"][0] <= history[worker]["memory_max_mb"][0]
        assert all(value > 0 for value in history[worker]["cpu_percent"])
    assert n_ranks == 1 or not LOAD & history["0:-:-"].keys()
    if n_ranks > 1:
        return
    # What is not asked for costs nothing and leaves nothing, also of the run that is replaced.
    ok(n_ranks, [*command, "--overwrite"], tmp_path, digits)
    assert not (run / "timeline.json").exists()
    assert not (run / "timeline").exists()
    assert not LOAD & json.loads(path.read_text())["history"][worker].keys()


def test_every_rank_of_a_worker_of_several_is_shown(tmp_path, network, digits):
    (tmp_path / "model.py").write_text(network.plain)
    command = ["TrainingDriver", "--model", "model.py", "--checkpoint", "R", "--n-processes", "2", "--timeline"]
    ok(5, command, tmp_path, digits)
    run = tmp_path / "checkpoints/R"
    spans = spans_of(run)
    for rank in range(1, 5):
        assert names_of(spans[rank]["main"]) >= {"batch", "gradient", "allreduce", "validate", "wait"}
    assert labels_of(run)[4] == "rank 4 (worker 2.2 of block 1)"


def test_a_search_shows_what_every_rank_did_and_took(tmp_path, network, digits):
    (tmp_path / "model.py").write_text(network.plain)
    (tmp_path / "space.py").write_text(SPACE)
    command = ["OptimizationDriver", "--model", "model.py", "--search-space", "space.py", "--num-iterations", "4"]
    command += ["--block-size", "2", "--checkpoint", "S", "--hyper-opt", "random", "--lr-schedule", "cosine"]
    ok(5, [*command, "--timeline", "--monitor"], tmp_path, digits)
    run = tmp_path / "checkpoints/S"
    spans = spans_of(run)
    assert set(spans) == set(range(5))
    assert names_of(spans[0]["coordinator"]) == {"step"}
    for master, worker in ((1, 2), (3, 4)):
        assert names_of(spans[master]["main"]) >= MASTERS_DO | {"wait"}
        assert names_of(spans[worker]["main"]) >= WORKERS_DO | {"wait"}
    roles = ["coordinator", "master of block 1", "worker 1 of block 1", "master of block 2", "worker 1 of block 2"]
    assert labels_of(run) == {rank: f"rank {rank} ({role})" for rank, role in enumerate(roles)}
    for trial in range(4):
        history = json.loads((run / f"trials/{trial:04d}/fold0/history.json").read_text())
        assert history["workers"]["1"].keys() >= LOAD
        assert not LOAD & history["epochs"][0].keys()


def test_ranks_that_run_an_objective_have_a_timeline_too_and_no_load(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.GOOD)
    command = ["OptimizationDriver", "--model", "objective.py", "--block-size", "2", "--num-iterations", "3"]
    outcome = ok(3, [*command, "--checkpoint", "O", "--timeline", "--monitor", "--keep-weights", "best:1"], tmp_path)
    assert "`--monitor` has no effect: it measures workers" in outcome.out
    assert "`--keep-weights` has no effect: an objective" in outcome.out
    spans = spans_of(tmp_path / "checkpoints/O")
    assert names_of(spans[1]["main"]) >= {"RunFold", "wait"}
    assert names_of(spans[2]["main"]) >= {"CallObjective", "wait"}


def test_a_quiet_terminal_shows_the_end_alone_and_a_traced_rank_logs_every_message(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.GOOD)
    command = ["OptimizationDriver", "--model", "objective.py", "--block-size", "2", "--num-iterations", "2"]
    quiet = ["--checkpoint", "Q", "--quiet", "--log-level", "trace", "--log-file", "all.log"]
    outcome = ok(3, [*command, *quiet], tmp_path)
    assert outcome.out.split()[0] == "Trials"
    assert "Search complete" in outcome.out
    assert "starts on block" not in outcome.out
    assert "starts on block" in (tmp_path / "all.log").read_text()
    assert "DEBUG" not in outcome.err
    log = (tmp_path / "checkpoints/Q/logs/rank-00001.log").read_text()
    traced = [line for line in log.splitlines() if "TRACE" in line]
    for words in ("from 0: RunFold(", "to 0: FoldFinished(", "to 1: CallObjective("):
        assert any(words in line for line in traced), traced


@pytest.mark.parametrize(
    ("options", "visible", "expected"),
    [
        ([], "4,5", ["4", "5", "4"]),
        (["--max-gpus", "1"], "4,5", ["4", "4", "4"]),
        (["--max-gpus", "0"], "4,5", ["-1", "-1", "-1"]),
        ([], "", ["-1", "-1", "-1"]),
    ],
    ids=str,
)
def test_the_gpus_that_the_batch_system_left_visible_go_round(tmp_path, monkeypatch, options, visible, expected):
    (tmp_path / "shows.py").write_text(objectives.SHOWS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    command = ["OptimizationDriver", "--model", "shows.py", "--block-size", "3", "--num-iterations", "1"]
    ok(4, [*command, "--hyper-opt", "random", *options], tmp_path)
    seen = [(tmp_path / f"rank-{rank}.txt").read_text().split() for rank in range(3)]
    assert [gpu for gpu, *_ in seen] == expected
    assert {threads for _, threads, _ in seen} == {"3"}
    # Where several share a GPU, none may take all of its memory.
    assert [grows for *_, grows in seen] == [
        "true" if gpu != "-1" and expected.count(gpu) > 1 else str(os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH"))
        for gpu in expected
    ]


def test_ranks_whose_gpu_0_is_another_one_each_share_none(tmp_path, monkeypatch):
    """As under a batch system that confines each task to a GPU of its own: the driver tells them apart."""
    (tmp_path / "shows.py").write_text(objectives.SHOWS)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built_driver(tmp_path)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    command = ["OptimizationDriver", "--model", "shows.py", "--block-size", "3", "--num-iterations", "1"]
    for of_task, grows in (("", "true"), ("1", str(os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")))):
        if of_task:
            monkeypatch.setenv("FAKE_GPU_OF_TASK", of_task)
        ok(4, [*command, "--hyper-opt", "random", "--checkpoint", f"run{of_task}"], tmp_path)
        seen = [(tmp_path / f"rank-{rank}.txt").read_text().split() for rank in range(3)]
        assert [(gpu, growth) for gpu, _, growth in seen] == [("0", grows)] * 3


OF_TWO, OF_THREE = "GPU 7, which 2 ranks share", "GPU 7, which 3 ranks share"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["no GPU", "GPU 7", "GPU 8"]),
        pytest.param(["--master-gpu"], [OF_TWO, "GPU 8", OF_TWO], marks=pytest.mark.proof),
        pytest.param(["--mode", "allreduce", "--max-gpus", "1"], [OF_THREE] * 3, marks=pytest.mark.proof),
    ],
    ids=str,
)
def test_a_master_has_a_gpu_where_it_trains_or_is_asked_to(tmp_path, network, digits, monkeypatch, options, expected):
    (tmp_path / "model.py").write_text(network.plain)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    command = ["TrainingDriver", "--model", "model.py", "--checkpoint", "T", "--verbose", *options]
    outcome = ok(3, command, tmp_path, digits)
    told = [outcome.err] + [(tmp_path / f"checkpoints/T/logs/rank-0000{rank}.log").read_text() for rank in (1, 2)]
    for text, gpu in zip(told, expected, strict=True):
        (line,) = [line for line in text.splitlines() if "this rank has" in line]
        assert line.endswith(f", {gpu}"), line
