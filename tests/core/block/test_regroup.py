"""Ranks of a team die, at any moment, and the others go on: the master with its central weights where it may."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials.checkpoint import load_latest, load_weights
from tests.helpers import linear_teams
from tests.helpers.linear_serial import data_of
from tests.helpers.linear_teams import finish, history_of, options_of, place_of, step_to_an_epoch
from tests.helpers.loopback_team import LoneTeam

pytestmark = [pytest.mark.usefixtures("exchange"), pytest.mark.many]

N_TRAIN, N_VALIDATION, EPOCHS = 27, 8, 3
DATA = data_of(N_TRAIN, N_VALIDATION)
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "downpour": {},
    "downpour, adam": {"optimizer": "adam"},
    "local steps": {"sync_every": 3},
    "easgd": {"mode": "easgd", "sync_every": 2},
    "gem": {"mode": "gem"},
}


def team_of(directory: Path, n_workers: int, **changes: Any) -> LoneTeam:
    return linear_teams.team_of(directory, options_of(batch=3, **changes), n_workers, DATA)


@pytest.mark.parametrize("rule", ASYNCHRONOUS)
def test_an_asynchronous_fold_continues_whenever_workers_die(tmp_path: Path, rule: str) -> None:
    """At every step of it; nothing that was pushed is lost, and every epoch validates all samples."""
    n_steps = 0
    while True:
        directory = tmp_path / str(n_steps)
        team = team_of(directory, 3, **ASYNCHRONOUS[rule])
        number = team.run_fold()
        team.steps(n_steps)
        if team.reported(msg.FoldFinished):
            break
        # The order to train may still be on its way.
        begun = team.master.taken == number
        fold = team.master._assignment
        # What workers have made themselves counts, though they had not told it.
        version = 0 if fold is None else (fold.weights.shared or fold.state).version
        assert team.regroup(2) == (number if begun else -1)
        assert not begun or team.master._assignment.state.version == version  # type: ignore[union-attr]
        n_before = len(team.deliveries)
        finished = team.settle()
        assert isinstance(finished, msg.FoldFinished)
        assert finished.n_epochs == EPOCHS
        weights, _ = load_weights(place_of(team))
        assert np.isfinite(weights).all()
        assert len(team.reported(msg.FoldStarted)) == 1, "to the coordinator it is one assignment"
        assert [report.epoch for report in team.reported(msg.EpochReported)] == [1, 2, 3]
        # Every epoch that ends after the death is validated by those who are left, on all samples.
        validated = [d.message for d in team.deliveries[n_before:] if isinstance(d.message, msg.Validated)]
        pairs = zip(validated[::2], validated[1::2], strict=True)
        assert all(a.n_samples + b.n_samples == N_VALIDATION for a, b in pairs)
        assert history_of(team)["n_workers"] == 2
        n_steps += 7
    assert n_steps > 35, "it was interrupted a few times"


def test_workers_may_die_again_until_one_is_left(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    team = team_of(tmp_path, 4)
    number = team.run_fold()
    for n_left in (3, 2, 1):
        team.steps(20, rng)
        assert team.regroup(n_left) == number
    assert isinstance(team.settle(rng), msg.FoldFinished)


def test_workers_that_die_before_they_have_begun_again_lose_nothing(tmp_path: Path) -> None:
    team = team_of(tmp_path, 4)
    number = step_to_an_epoch(team)
    team.steps(6)
    fold = team.master._assignment
    assert fold is not None
    assert team.regroup(3) == number
    before = fold.state.n_samples, fold.state.version, fold.weights.central.copy()
    assert before[0] > N_TRAIN - 1
    assert team.regroup(2) == number
    assert (fold.state.n_samples, fold.state.version) == before[:2]
    assert np.array_equal(fold.weights.central, before[2])
    assert isinstance(team.settle(), msg.FoldFinished)


def test_new_workers_begin_another_pass_over_their_data(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3)
    step_to_an_epoch(team)
    team.regroup(2)
    n_before = len(team.deliveries)
    team.settle()
    first = [d.message for d in team.deliveries[n_before:] if isinstance(d.message, msg.Train)][:2]
    assert all(train.adopt == "weights" and train.position["pass"] >= 1 for train in first)


def has_weights(worker: Any) -> bool:
    """Whether it has been sent weights to train on."""
    return worker._training is not None and worker._training.is_running


def hand_weights_to(team: LoneTeam, worker: Any) -> None:
    """Deliver messages alone, until the worker has them: no batch may be trained yet."""
    while not has_weights(worker):
        assert any(team._deliver(place) for place in range(len(team._places)))


def model_state_of(worker: Any) -> np.ndarray:
    worker._training.task.adapter.read_state(state := np.zeros(1, np.float32))
    return state


def state_of(worker: Any) -> dict[str, Any]:
    return {name: np.copy(value) for name, value in worker._training._rule.state().items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "easgd", "elastic_momentum": 0.9, "elastic_lr": 0.01},
        {"mode": "easgd", "worker_optimizer": "adam"},
        {"sync_every": 2, "worker_optimizer": "adam"},
        {"mode": "gem"},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_deaths", [1, 2])
def test_a_worker_that_survives_keeps_the_memory_of_its_update_rule(
    tmp_path: Path, changes: dict[str, Any], n_deaths: int
) -> None:
    """In EASGD with its own weights and model state; others adopt the central weights."""
    team = team_of(tmp_path, 4, **{"sync_every": 3, **changes})
    step_to_an_epoch(team)
    team.steps(10)
    before = [state_of(worker) for worker in team.workers]
    model_states = [model_state_of(worker) for worker in team.workers]
    for n_left in [3, 2][:n_deaths]:  # the second before anybody has begun again
        team.regroup(n_left)
    central = team.master._assignment.weights.central.copy()  # type: ignore[union-attr]
    own_weights = changes.get("mode") == "easgd"
    for i, worker in enumerate(team.workers):
        hand_weights_to(team, worker)
        if own_weights:
            after = state_of(worker)
            assert after.keys() == before[i].keys()
            for name, value in before[i].items():
                np.testing.assert_array_equal(after[name], value, err_msg=name)
            assert not np.array_equal(after["weights"], central[:-1])
        else:
            np.testing.assert_array_equal(worker._training._rule.weights, central[:-1])
            slots = [name for name, value in before[i].items() if np.ndim(value) and name in ("m", "v", "momentum")]
            assert slots
            for name in slots:
                np.testing.assert_array_equal(state_of(worker)[name], before[i][name], err_msg=name)
        np.testing.assert_array_equal(model_state_of(worker), model_states[i] if own_weights else central[-1:])
    assert isinstance(team.settle(), msg.FoldFinished)


def test_a_worker_that_had_not_begun_when_other_workers_died_begins_at_the_centre(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3, mode="easgd", sync_every=2)
    number = team.run_fold()
    hand_weights_to(team, team.workers[0])
    assert not has_weights(team.workers[1]), "what it is to begin with is on its way"
    assert team.regroup(2) == number
    assert team.workers[0]._memory is not None
    assert team.workers[1]._memory is None
    central = team.master._assignment.weights.central  # type: ignore[union-attr]
    hand_weights_to(team, team.workers[1])
    np.testing.assert_array_equal(team.workers[1]._training._rule.weights, central[:-1])


def test_what_is_remembered_of_one_assignment_is_not_taken_for_another(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3, mode="easgd", sync_every=2)
    step_to_an_epoch(team)
    team.regroup(2)
    team.order(msg.StopFold(assignment=0))
    team.settle()
    alone = team_of(tmp_path / "alone", 2, mode="easgd", sync_every=2)
    assert finish(team, trial=1).figure_of_merit == finish(alone, trial=1).figure_of_merit


@pytest.mark.parametrize("changes", [{"synchronous": True}, {"mode": "allreduce"}], ids=str)
def test_a_fold_whose_workers_wait_for_each_other_is_repeated_from_its_checkpoint(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    team = team_of(tmp_path, 1 if "mode" in changes else 3, **changes)
    step_to_an_epoch(team)
    assert team.regroup(1) == -1
    assert finish(team).assignment == 1
    assert team.reported(msg.FoldStarted)[-1].epoch == 1


def test_a_fold_that_waits_for_a_word_is_repeated_too(tmp_path: Path) -> None:
    """The word may be on its way, and the checkpoint has all that is trained."""
    team = team_of(tmp_path, 2)
    team.order(
        msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={}, waits_for_decision=True, pause_epochs=[1])
    )
    assert team.settle().waits  # type: ignore[attr-defined]
    assert team.regroup(1) == -1
    n_before = len(team.deliveries)
    team.order(msg.GoOn(assignment=0))
    team.settle()
    assert len(team.deliveries) == n_before, "nobody has gone on"


def test_a_team_that_is_told_to_stop_while_it_starts_again_stops(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3)
    number = step_to_an_epoch(team)
    team.regroup(2)
    team.order(msg.StopFold(assignment=number))
    assert team.settle() == msg.FoldStopped(assignment=number)


def test_a_preempted_team_that_starts_again_reaches_a_fence(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3)
    number = step_to_an_epoch(team)
    team.regroup(2)
    team.order(msg.PreemptFold(assignment=number))
    assert team.settle() == msg.FoldStopped(assignment=number)
    kept = load_latest(place_of(team))
    assert kept is not None
    assert (kept.epoch, sorted(kept.workers)) == (1, [1, 2])
    assert kept.n_samples_inside > 0


def test_a_master_whose_team_cannot_train_lets_its_assignment_go(tmp_path: Path) -> None:
    team = team_of(tmp_path, 3)
    team.run_fold()
    team.steps(20)
    assert team.master.regroup(team._networks[0].end(0), None) == -1
