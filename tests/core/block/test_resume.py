"""A crash of a whole team, and a new team that goes on from what is on disk."""

import json
import shutil
from operator import attrgetter

import numpy as np
import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.models.adapter import Metrics
from nnlo_opt.core.trials.checkpoint import load_weights
from tests.helpers import linear_teams
from tests.helpers.effort import some_of
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import SMALL, Data, data_of
from tests.helpers.linear_teams import fail, history_of, place_of, tree_of
from tests.helpers.loopback_team import LoneTeam, LoopbackTeam, tasks_from
from tests.helpers.memory_source import numbered_source

pytestmark = [pytest.mark.usefixtures("exchange"), pytest.mark.many]

EPOCHS = 4


@pytest.fixture(params=["messages", "shared weights", "attempts"])
def exchange(request, monkeypatch):
    """As for other tests of blocks, and with a folder for each attempt, as where jobs share a run."""
    monkeypatch.setattr(LoopbackTeam, "shares", request.param == "shared weights")
    monkeypatch.setattr(LoneTeam, "term", int(request.param == "attempts"))
    return request.param


class DropoutAdapter(LinearAdapter):
    """A linear model whose gradients depend on both its float and its integer state, as with a batch normalisation
    and a dropout: what is not restored exactly shows in the weights.
    """

    def gradient(self, x, y, out, sample_weight=None) -> Metrics:
        keep = np.random.default_rng(self._n_batches).random(x.shape) < 0.8
        return super().gradient((x * keep - self._state).astype(np.float32), y, out)


def team_of(directory, options, workers, data=SMALL):
    def build(parameters, options, seed):
        return DropoutAdapter(*data.source.info.feature_shape, seed)

    return LoneTeam(directory, options, lambda: tasks_from(build, *data, options), workers)


def options_of(**changes):
    return linear_teams.options_of(**{"epochs": EPOCHS, "optimizer": "adam", "synchronous": True, **changes})


def run_until(team, n_epochs, seed=None):
    """Train until `n_epochs` more have been reported, or to the end; -> whether it has ended."""
    rng = None if seed is None else np.random.default_rng(seed)
    team.run_fold()
    while team.step(rng):
        if team.reported(msg.FoldFinished):
            return True
        if len(team.reported(msg.EpochReported)) == n_epochs:
            return False
    raise AssertionError(team.reports[-1])


def interrupted(directory, options, workers, n_epochs=1, seed=None, **how):
    """A team that has been interrupted after its first epochs."""
    team = team_of(directory, options, workers, **how)
    assert not run_until(team, n_epochs, seed)
    return team


def trained(directory, options, workers, seed=None, **how):
    """A team that has gone on to the end from what there was."""
    team = team_of(directory, options, workers, **how)
    assert run_until(team, options.epochs + 1, seed)
    return team


def result_of(where):
    """All that a finished fold leaves, but for times; `where`: a team, or its directory."""
    weights, state = load_weights(place_of(where))
    return weights.tobytes(), state.tobytes(), history_of(where)


def uninterrupted(directory, options, workers, **how):
    return result_of(trained(directory, options, workers, **how))


MOMENTUM = {"mode": "easgd", "elastic_momentum": 0.9, "elastic_lr": 0.02, "optimizer": "sgd"}
CASES = [
    pytest.param(3, {}, id="three synchronous workers, adam"),
    pytest.param(2, {"optimizer": "sgd", "optimizer_params": {"momentum": 0.9}}, id="two, sgd with momentum"),
    pytest.param(2, {"sync_every": 3}, id="two with local steps"),
    pytest.param(3, {"early_stopping": "val_loss,<,2", "learning_rate": 0.9}, id="three, best weights kept"),
    pytest.param(1, {"synchronous": False, "optimizer": "rmsprop"}, id="one asynchronous worker"),
    pytest.param(1, {"synchronous": False, "sync_every": 3}, id="one asynchronous worker with local steps"),
    pytest.param(2, {"sync_every": 3, "worker_optimizer": "adam"}, id="two with local steps of adam"),
    pytest.param(2, {"mode": "easgd", "sync_every": 2}, id="two, elastic, adam"),
    pytest.param(2, MOMENTUM, id="two, elastic with momentum"),
    pytest.param(1, {"synchronous": False, "mode": "gem"}, id="one worker, gem"),
    pytest.param(1, {"synchronous": False, "mode": "gem", "sync_every": 3}, id="one worker, gem with local steps"),
    pytest.param(1, {"synchronous": False, "mode": "allreduce"}, id="allreduce of one"),
    pytest.param(3, {"warmup_epochs": 1.5, "lr_schedule": "cosine"}, id="three, warm-up and cosine"),
    pytest.param(2, {"sync_every": 3, "lr_schedule": "linear"}, id="two with local steps, linear"),
    pytest.param(2, {"mode": "easgd", "sync_every": 2, "lr_schedule": "cosine"}, id="two, elastic, cosine"),
    pytest.param(1, {"synchronous": False, "mode": "gem", "lr_schedule": "step:1:0.5"}, id="one worker, gem, steps"),
    pytest.param(1, {"synchronous": False, "mode": "allreduce", "warmup_epochs": 1.5}, id="allreduce of one, warm-up"),
    pytest.param(2, {"ema": 0.9, "early_stopping": "val_loss,<,2"}, id="two, average, best weights kept"),
    pytest.param(1, {"synchronous": False, "ema": 0.9, "optimizer": "adamw"}, id="one asynchronous worker, average"),
    pytest.param(1, {"synchronous": False, "mode": "allreduce", "ema": 0.9}, id="allreduce of one, average"),
    pytest.param(2, {"mode": "easgd", "sync_every": 2, "ema": 0.9}, id="two, elastic, average"),
    pytest.param(1, {"synchronous": False, "mode": "gem", "ema": 0.9}, id="one worker, gem, average"),
    pytest.param(3, {"optimizer": "nadam", "global_clip_norm": 0.5, "weight_decay": 0.1}, id="three, decay, clipped"),
]


CASES_OF_TREES = [
    pytest.param(tree_of(n_workers, n_masters), changes, id=f"{n_workers} with {n_masters} masters, {changes}")
    for n_workers, n_masters in [(5, 3), (3, 2)]
    for changes in [
        {},
        {"sync_every": 3, "worker_optimizer": "adam", "lr_schedule": "cosine"},
        {"early_stopping": "val_loss,<,2", "learning_rate": 0.9},
        {"mode": "easgd", "sync_every": 2},
        MOMENTUM,
    ]
]
ASYNCHRONOUS_GROUPS = [
    pytest.param(tree_of(3, 2), {"mode": mode, "synchronous": False, "sync_every": 2}, id=f"one group, {mode}")
    for mode in ("downpour", "easgd", "gem")
]


@pytest.mark.parametrize(("workers", "changes"), [*CASES, *CASES_OF_TREES, *ASYNCHRONOUS_GROUPS])
def test_interrupted_after_every_epoch_a_training_ends_with_the_very_same_bits(tmp_path, workers, changes):
    options = options_of(**changes)
    expected = uninterrupted(tmp_path / "whole", options, workers)
    started_at = []
    ended = False
    while not ended:
        team = team_of(tmp_path / "parts", options, workers)
        ended = run_until(team, 1, np.random.default_rng(len(started_at)))
        started_at.append(team.reported(msg.FoldStarted)[0].epoch)
    assert started_at == list(range(len(started_at)))
    assert len(started_at) > 2
    assert result_of(team) == expected


@pytest.mark.parametrize(("before", "after"), [((4, 1), (4, 3)), ((4, 3), (4, 1)), ((4, 3), (4, 2)), ((4, 2), (5, 3))])
@pytest.mark.parametrize("mode", ["downpour", "easgd"])
def test_a_training_continues_with_another_number_of_masters(tmp_path, before, after, mode):
    options = options_of(mode=mode)
    team = interrupted(tmp_path, options, tree_of(*before), 2, seed=0)
    again = trained(tmp_path, options, tree_of(*after), seed=1)
    assert [report.epoch for report in again.reported(msg.EpochReported)] == [3, 4]
    central = team.delivered(msg.Validate)[-1].payload
    first = next(d for d in again.delivered(msg.Train) if d.group == 0)
    remembered = first.message.adopt == "nothing"
    # The elastic weights of the same workers go on; a centre that nobody had must be given.
    assert remembered == (mode == "easgd" and after == (4, 1))
    if not remembered:
        assert np.array_equal(first.payload, central)


@pytest.mark.parametrize("n_masters", [2, 3])
def test_a_synchronous_training_continues_in_a_tree_as_without_one(tmp_path, n_masters):
    options = options_of()
    weights, _, history = uninterrupted(tmp_path / "flat", options, 4)
    interrupted(tmp_path / "tree", options, 4, 2)
    trained(tmp_path / "tree", options, tree_of(4, n_masters))
    of_tree, _, history_of_tree = result_of(tmp_path / "tree")
    np.testing.assert_allclose(
        np.frombuffer(of_tree, np.float32), np.frombuffer(weights, np.float32), rtol=1e-4, atol=1e-5
    )
    assert history_of_tree["workers"].keys() == history["workers"].keys()


#: long epochs
N_LONG = 192
LONG = data_of(N_LONG, 10)
ELASTIC = pytest.param(3, {"mode": "easgd", "sync_every": 3, "early_stopping": "val_loss,<,2"}, id="three, elastic")


def preempted_at(team, moment, rng=None):
    """Tell the master to come to a checkpoint when so many steps are done; -> whether the fold ended before."""
    number = team.run_fold()
    for _ in range(moment):
        if not team.step(rng) or team.reported(msg.FoldFinished):
            return True
    team.order(msg.PreemptFold(assignment=number))
    return isinstance(team.settle(rng), msg.FoldFinished)


def preempted_again_and_again(make_team, seed):
    """Starts until the fold has ended; -> of each whether it went on in the middle of an epoch."""
    inside, rng = [], np.random.default_rng(seed)
    for _ in range(60):
        team = make_team()
        ended = preempted_at(team, rng.integers(12, 60), rng)
        inside += [d.message.mid_epoch for d in team.delivered(msg.Train)[:1]]
        if ended:
            return inside
    raise AssertionError("no end")


@pytest.mark.parametrize("seed", some_of(range(2)))
@pytest.mark.parametrize(("n_workers", "changes"), [*CASES, ELASTIC])
def test_preempted_in_the_middle_of_epochs_a_training_ends_with_the_very_same_bits(
    tmp_path, n_workers, changes, seed, exchange
):
    options = options_of(**changes, checkpoint_interval=3)
    expected = uninterrupted(tmp_path / "whole", options, n_workers, data=LONG)
    inside = preempted_again_and_again(lambda: team_of(tmp_path / "parts", options, n_workers, LONG), seed)
    assert any(inside)
    weights, state, history = result_of(tmp_path / "parts")
    assert (weights, state) == expected[:2]
    if options.mode == "allreduce" or (exchange == "shared weights" and not options.synchronous):
        # A worker's sums of an epoch come in two parts, which are added in another order.
        losses, wanted = ([epoch["loss"] for epoch in epochs] for epochs in (history["epochs"], expected[2]["epochs"]))
        assert losses == pytest.approx(wanted, rel=1e-12)
    else:
        assert history == expected[2]


def test_a_preempted_synchronous_tree_continues_from_its_next_fence_bit_for_bit(tmp_path):
    options, plan = options_of(checkpoint_interval=3), tree_of(5, 3)
    expected = uninterrupted(tmp_path / "whole", options, plan)
    inside = preempted_again_and_again(lambda: team_of(tmp_path / "parts", options, plan), 0)
    assert len(inside) > 1
    assert not any(inside)
    assert result_of(tmp_path / "parts") == expected


@pytest.mark.parametrize("seed", some_of(range(3)))
@pytest.mark.parametrize("mode", ["downpour", "easgd", "gem"])
@pytest.mark.parametrize("plan", [3, tree_of(5, 3)], ids=["flat", "tree"])
def test_preempted_at_any_time_an_asynchronous_training_trains_no_epoch_of_samples_twice(tmp_path, plan, mode, seed):
    options, n_samples = options_of(mode=mode, synchronous=False, sync_every=2), 0

    def make_team():
        teams.append(team_of(tmp_path, options, plan, LONG))
        return teams[-1]

    teams = []
    assert any(preempted_again_and_again(make_team, seed))
    for team in teams:
        of_master = [d.message for d in team.deliveries if d.group == 0 and d.dest == 0]
        n_samples += sum(m.n_samples for m in of_master if isinstance(m, msg.PushUpdate | msg.FenceReached))
    # As without: what is under way when an epoch is full comes on top, two batches of four for each worker at most.
    assert EPOCHS * N_LONG <= n_samples <= EPOCHS * N_LONG + 5 * 2 * 8
    assert len(result_of(tmp_path)[2]["epochs"]) == EPOCHS


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
@pytest.mark.parametrize("synchronous", [False, True])
def test_an_epoch_is_continued_by_another_number_of_workers(tmp_path, before, after, synchronous):
    options = options_of(synchronous=synchronous)
    assert not preempted_at(team_of(tmp_path, options, before, LONG), 30)
    assert [path.name[:13] for path in place_of(tmp_path).iterdir()] == ["checkpoint-0-"]
    again = trained(tmp_path, options, after, data=LONG)
    assert [report.epoch for report in again.reported(msg.EpochReported)] == [1, 2, 3, 4]
    n_samples = sum(d.message.n_samples for d in again.delivered(msg.PushUpdate))
    # Synchronously the passes of the others cannot be gone on with: these begin the epoch anew.
    assert n_samples == EPOCHS * N_LONG if synchronous else n_samples < EPOCHS * N_LONG


@pytest.mark.parametrize("interval", some_of([2, 1]))
def test_interrupted_at_any_moment_a_training_ends_with_the_very_same_bits(tmp_path, interval):
    options = options_of(epochs=3, checkpoint_interval=interval)
    whole = trained(tmp_path / "whole", options, 2)
    expected, n_steps = result_of(whole), len(whole.deliveries)
    for moment in range(2, n_steps, 3):
        directory = tmp_path / str(moment)
        team = team_of(directory, options, 2)
        team.run_fold()
        team.steps(moment)
        n_done = max((r.epoch for r in team.reported(msg.EpochReported) if r.checkpointed), default=0)
        again = trained(directory, options, 2)
        assert again.reported(msg.FoldStarted)[0].epoch == n_done
        assert result_of(directory) == expected


def test_a_fold_that_crashed_before_its_record_finishes_with_the_same_figures(tmp_path):
    options = options_of(early_stopping="val_loss,<,2", learning_rate=0.9, epochs=30)
    team = trained(tmp_path, options, 2)
    expected = result_of(tmp_path)
    again = trained(tmp_path, options, 2)
    assert not again.delivered(msg.Train)
    assert not again.reported(msg.EpochReported)
    figures = attrgetter("figure_of_merit", "metrics", "n_epochs", "reason")
    assert figures(again.reported(msg.FoldFinished)[0]) == figures(team.reported(msg.FoldFinished)[0])
    assert result_of(tmp_path) == expected


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 5)])
def test_another_number_of_workers_continues_the_training(tmp_path, before, after, synchronous):
    options = options_of(synchronous=synchronous)
    team = interrupted(tmp_path, options, before, 2, seed=0)
    again = trained(tmp_path, options, after, seed=1)
    assert again.reported(msg.FoldStarted)[0].epoch == 2
    assert [report.epoch for report in again.reported(msg.EpochReported)] == [3, 4]
    resumed_from = again.delivered(msg.Train)[0].payload
    assert np.array_equal(resumed_from, team.delivered(msg.Validate)[-1].payload)
    history = history_of(again)
    assert len(history["epochs"]) == EPOCHS
    assert [e["loss"] for e in history["epochs"]][:2] == [r.metrics["loss"] for r in team.reported(msg.EpochReported)]


def test_with_another_number_of_workers_every_further_epoch_trains_every_sample_once(tmp_path):
    n_train = 23
    data = Data(numbered_source(n_train), [single_fold(n_train, 0)])
    options = options_of()
    interrupted(tmp_path, options, 3, data=data)
    again = trained(tmp_path, options, 4, data=data)
    assert sum(d.message.n_samples for d in again.delivered(msg.PushUpdate)) == (EPOCHS - 1) * n_train
    positions = {json.dumps(d.message.position) for d in again.delivered(msg.Train)[:4]}
    assert positions == {json.dumps({"pass": 2, "offset": 0})}


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    options = options_of()
    expected = uninterrupted(tmp_path / "whole", options, 2)
    interrupted(tmp_path / "parts", options, 2)
    place = place_of(tmp_path / "parts")
    shutil.copytree(str(place / "checkpoint-1"), tmp_path / "kept")
    interrupted(tmp_path / "parts", options, 2)
    shutil.copytree(tmp_path / "kept", str(place / "checkpoint-1"))
    place = place_of(tmp_path / "parts")
    whole = (place / "checkpoint-2" / "master.npz").read_bytes()
    (place / "checkpoint-2" / "master.npz").write_bytes(whole[: len(whole) // 2])
    again = trained(tmp_path / "parts", options, 2)
    assert again.reported(msg.FoldStarted)[0].epoch == 1
    assert result_of(tmp_path / "parts") == expected


def test_with_no_checkpoint_that_can_be_read_it_begins_afresh(tmp_path):
    options = options_of()
    expected = uninterrupted(tmp_path / "whole", options, 2)
    interrupted(tmp_path / "parts", options, 2, 2)
    (place_of(tmp_path / "parts") / "checkpoint-2" / "manifest.json").unlink()
    again = trained(tmp_path / "parts", options, 2)
    assert again.reported(msg.FoldStarted)[0].epoch == 0
    assert result_of(tmp_path / "parts") == expected


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_a_checkpoint_of_another_model_or_optimizer_fails_the_trial_with_a_sentence(tmp_path, what):
    interrupted(tmp_path, options_of(), 2)
    if what == "model":
        again = team_of(tmp_path, options_of(), 2, data_of(26, 7, n_features=6))
    else:
        again = team_of(tmp_path, options_of(optimizer="sgd"), 2)
    failed = fail(again)
    assert what in failed.reason
    assert "checkpoint" in failed.reason
    assert "\n" not in failed.reason


def test_elastic_workers_begin_at_the_central_weights_where_the_checkpoint_has_none_of_theirs(tmp_path):
    """A target ends a training at an epoch that no checkpoint was due at: then the workers have written nothing."""
    changes = {"mode": "easgd", "synchronous": False, "checkpoint_interval": 5, "exchange": "messages"}
    first = trained(tmp_path, options_of(**changes, target_metric="val_loss,<,100"), 2)
    place = place_of(tmp_path)
    assert not list((place / "checkpoint-1").glob("worker-*.npz"))
    again = trained(tmp_path, options_of(**changes), 2)
    assert again.reported(msg.FoldStarted)[0].epoch == 1
    begun = again.delivered(msg.Train)[:2]
    assert [delivery.message.adopt for delivery in begun] == ["weights"] * 2
    for delivery in begun:
        assert np.array_equal(delivery.payload, first.delivered(msg.Validate)[-1].payload)
    # What each pushes first is one step of Adam from there, whose first is as long as the learning rate.
    pushed = {d.source: d.payload for d in reversed(again.delivered(msg.PushUpdate))}
    central = begun[0].payload[: len(pushed[1])]
    for weights in pushed.values():
        np.testing.assert_allclose(np.abs(weights - central), 0.05, rtol=1e-3)


def test_the_time_trained_counts_what_was_trained_before(tmp_path):
    options = options_of()
    team = interrupted(tmp_path, options, 2, 3)
    before_s = team.clock.monotonic_s()
    again = trained(tmp_path, options, 2)
    total_s = again.reported(msg.FoldFinished)[0].train_s
    assert before_s - 5 < total_s - again.clock.monotonic_s() < before_s + 5
