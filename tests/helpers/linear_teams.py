"""Teams of linear models on loopback transports."""

import json

import numpy as np

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.attempts import attempt_directory
from nnlo_opt.core.trials.checkpoint import load_weights
from tests.helpers.linear_serial import BATCH, EPOCHS, RATE, SMALL
from tests.helpers.loopback_team import LoneTeam, attempts_at, linear_tasks


def options_of(**changes):
    given = {"batch": BATCH, "epochs": EPOCHS, "optimizer": "sgd", "learning_rate": RATE, **changes}
    return TrainingOptions.of(given)


def tree_of(n_workers, n_masters):
    """The plan of a world that is one team; one master has no sub-masters."""
    return plan_single_block(n_workers + n_masters, n_masters=n_masters)


def team_of(directory, options, workers=1, data=SMALL, **how):
    """A team of so many `workers`, or by the plan of a tree."""
    return LoneTeam(directory, options, linear_tasks(*data, options), workers, **how)


def run(team, seed=None, point=None, trial=0):
    """Order a fold; the last report of the master. `seed`: of the order of events."""
    team.run_fold(point, trial)
    return team.settle(None if seed is None else np.random.default_rng(seed))


def fail(team, *args, **kwargs):
    """As `run`, of a fold that fails."""
    report = run(team, *args, **kwargs)
    assert isinstance(report, msg.FoldFailed), report
    return report


def finish(team, *args, **kwargs):
    """As `run`, of a fold that is trained."""
    report = run(team, *args, **kwargs)
    assert isinstance(report, msg.FoldFinished), report
    return report


def trained(directory, options, workers=1, seed=None, **how):
    """A team that has trained a fold."""
    team = team_of(directory, options, workers, **how)
    finish(team, seed)
    return team


def step_to_an_epoch(team):
    """Order a fold and step until its first epoch is reported; the number of the assignment."""
    number = team.run_fold()
    while not team.reported(msg.EpochReported):
        assert team.step()
    return number


def val_losses(team):
    return [report.metrics["val_loss"] for report in team.reported(msg.EpochReported)]


def place_of(where, trial=0):
    """Folder of the last attempt at fold 0 of a trial; `where`: a team, or its directory."""
    directory = getattr(where, "directory", where)
    return attempt_directory(directory, trial, 0, [(0, 0), *attempts_at(directory, trial)][-1])


def central_of(team, trial=0):
    """The weights that the team has left."""
    return load_weights(place_of(team, trial))[0]


def history_of(where):
    """The history that a team has left, but for its time; `where` as for `place_of`."""
    history = json.loads((place_of(where) / "history.json").read_bytes())
    del history["train_s"]
    return history
