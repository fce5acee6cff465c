"""What acts on a search under real mpirun: points enqueued, trials and the search stopped, by another process."""

import threading

import pytest

from nnlo_opt.cli import tool
from tests.helpers import launcher, objectives

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

#: reports until it is told to stop, for ten minutes at most
ENDLESS = objectives.module("""
    for epoch in range(1, 6000):
        time.sleep(0.1)
        if not report(epoch, parameters["x"]):
            break
    return parameters["x"]
""")


def test_a_search_is_steered_by_another_process_and_continues_after_a_stop(tmp_path, capsys):
    (tmp_path / "objective.py").write_text(ENDLESS)
    (tmp_path / "run.yaml").write_text("model: objective.py\ngrace: 4\n")
    command = ["OptimizationDriver", "--options", "run.yaml", "--checkpoint", "S"]
    command += ["--on-end", "echo $NNLO_OPT_STATE $NNLO_OPT_REASON $NNLO_OPT_TRIALS >> ends"]
    run = tmp_path / "checkpoints/S"

    def ask(what: str, *words: str) -> str:
        """What the command says, which is answered by the search if there is one."""
        assert tool.main([what, str(run), *words, "--wait", "60"]) == 0
        return capsys.readouterr().out

    def point_of(trial: int) -> dict[str, float]:
        return launcher.events_of(run, "TrialSuggested")[trial]["point"]

    assert "the first start of" in ask("enqueue", "x=0.5", "--new")
    job = launcher.start(3, command, tmp_path)
    job.wait_for(run, "EpochEnded", 1)
    assert point_of(0) == {"x": 0.5}
    waits = threading.Thread(target=tool.main, args=[["enqueue", str(run), "x=0.125", "--wait", "60"]])
    waits.start()
    for trial in range(3):  # the second suggestion may have been made before
        job.wait_for(run, "TrialSuggested", trial + 1)
        if point_of(trial) == {"x": 0.125}:
            break
        launcher.seen_within(60, (run / "inbox").exists)
        job.wait_for(run, "EpochEnded", len(launcher.events_of(run, "EpochEnded")) + 2)
        assert tool.main(["stop", str(run), str(trial), "--wait", "60"]) == 0
    waits.join()
    said = capsys.readouterr().out
    assert "Trial 0 has ended: pruned, stopped by `nnlo-opt stop`." in said
    assert f"Enqueued x=0.125: trial {trial} tries it." in said
    assert "ends within `--grace`, and an objective that has not returned by then starts over" in ask("stop")
    out = job.wait(90, code=75).out
    assert "Enqueued: x=0.125." in out
    assert "Search interrupted: stopped by `nnlo-opt stop`" in out
    assert (tmp_path / "ends").read_text() == f"interrupted stopped by `nnlo-opt stop` {trial + 1}\n"

    assert "so the next start tries it first" in ask("enqueue", "x=0.75")
    job = launcher.start(3, [*command, "--opt-restore"], tmp_path)
    job.wait_for(run, "EpochEnded", len(launcher.events_of(run, "EpochEnded")) + 2)
    ask("stop", str(trial))
    job.wait_for(run, "TrialSuggested", trial + 2)
    assert point_of(trial + 1) == {"x": 0.75}
    ask("stop", "--finish")
    assert f"Trial {trial + 1} has ended" in ask("stop", str(trial + 1))
    job.wait(90, code=75)
    assert not list((run / "inbox").iterdir())
