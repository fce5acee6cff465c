"""A search that is killed before a decision takes the same decision when it is resumed."""

import json
import random
import shutil

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt import Real

N_EPOCHS = 18
SPACE = {"lr": Real(1e-3, 1, "log-uniform"), "d": Real(0, 1)}
OPTIONS = {"hyper_opt": "freeze-thaw", "pruner_max_epochs": N_EPOCHS, "num_iterations": 60, "seed": 3}


def objective(trial, checkpoint):
    if (trial.directory.parents[1] / "stop").exists():
        raise KeyboardInterrupt  # ends the search with what it has
    lr, d = trial.parameters["lr"], trial.parameters["d"]
    for epoch in range(checkpoint.epoch + 1, N_EPOCHS + 1):
        value = (np.log10(lr) + 1.5) ** 2 + d**2 + 3 / epoch ** (0.3 + d)
        checkpoint.save(epoch, lambda folder: (folder / "state").touch())
        if not trial.report(epoch, value):
            break
    return value


def decisions(lines):
    """Index, event, trial and point of each decision by which a block got a trial."""
    events = [json.loads(line) for line in lines]
    return [
        (i, event["event"], event["trial"], event.get("point"))
        for i, event in enumerate(events[:-1])
        if event["event"] in ("TrialSuggested", "TrialPromoted") and events[i + 1]["event"] == "FoldAssigned"
    ]


@pytest.mark.proof
@pytest.mark.usefixtures("reports_here")
def test_freeze_thaw_decides_the_same_after_a_kill_at_fifty_random_moments(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    nnlo_opt.optimize(objective, SPACE, checkpoint=str(run), **OPTIONS)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    taken = decisions(lines)
    resumed = [what for _, what, *_ in taken].count("TrialPromoted")
    assert min(resumed, len(taken) - resumed) > 20, "both kinds of decisions are taken"
    for cut, *expected in random.Random(0).sample(taken[2:], 50):
        shutil.copytree(run, copy)
        (copy / "journal.synced").unlink()
        (copy / "journal.jsonl").write_bytes(b"".join(lines[:cut]))
        (copy / "stop").touch()
        nnlo_opt.optimize(objective, SPACE, checkpoint=str(copy), opt_restore=True, **OPTIONS)
        later = (copy / "journal.jsonl").read_bytes().splitlines()
        assert [*decisions(later[cut:])[0][1:]] == expected
        shutil.rmtree(copy)
