"""Ranks that average their gradients, one of which fails outside of the collective step: nobody waits for it.

The sum of the groups runs the other ranks until each has added its part. Where none of them has anything left to do
and one has not come, real ranks would hang: here that is an error.
"""

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import plan_single_block
from tests.helpers import linear_teams
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.linear_serial import N_FEATURES, RATE, data_of
from tests.helpers.linear_teams import central_of, fail, finish, step_to_an_epoch, val_losses
from tests.helpers.loopback_team import LoneTeam, tasks_from

pytestmark = pytest.mark.many

N_TRAIN = 48
DATA = data_of(N_TRAIN, 6)


class FailingAdapter(LinearAdapter):
    """Raises where it is told to: at a number of gradients, or when its integer state is restored."""

    def __init__(self, fault, at) -> None:
        super().__init__(N_FEATURES)
        self._fault, self._at = fault, at

    def borrow_weights(self, vector) -> None:
        self.write_weights(vector)

    def write_weights(self, vector) -> None:
        if self._fault == "write" and self._n_batches == self._at:
            raise RuntimeError("no weights, please")
        super().write_weights(vector)

    def load_discrete_state(self, values) -> None:
        if self._fault == "restore":
            raise RuntimeError("no state, please")
        super().load_discrete_state(values)


class Meeting:
    """A group of ranks in one process; `step` lets the rank of a number do something, -> whether it did."""

    def __init__(self, step, numbers) -> None:
        self._step = step
        self.numbers = frozenset(numbers)
        #: number -> what it has brought to the sum under way
        self._parts = {}

    def of(self, number):
        """The collective of one rank."""
        meeting = self

        class Member:
            def sum_in_place(self, vector) -> None:
                meeting._come(number, vector)

        return Member()

    def _come(self, number, vector) -> None:
        self._parts[number] = vector
        while vector is self._parts.get(number):
            away = self.numbers - self._parts.keys()
            if not away:
                total = np.sum([part for _, part in sorted(self._parts.items())], axis=0)
                for part in self._parts.values():
                    part[:] = total
                self._parts = {}
            elif not any(self._step(other) for other in sorted(away)):
                # Not a failure of the trial, which a rank would answer: it ends the test.
                raise ProtocolError(f"ranks {sorted(self._parts)} wait for {sorted(away)}, which never come")


class GroupTeam(LoneTeam):
    """A team with ends for a master (0) and `n_ranks` ranks, which average: all of them, or `per_worker` each."""

    def __init__(self, directory, options, n_ranks, per_worker=1, faulty=1, **how) -> None:
        """A trial with the parameters `fault` and `at` has them on rank `faulty` alone."""
        numbers = range(1, n_ranks + 1)
        groups = [numbers[i : i + per_worker] for i in range(0, n_ranks, per_worker)] if per_worker > 1 else [numbers]
        meetings = [Meeting(self.act, group) for group in groups]
        self._together = {number: meeting.of(number) for meeting in meetings for number in meeting.numbers}
        unseated = iter(numbers)

        def tasks():
            is_faulty = next(unseated) == faulty

            def build(parameters, options, seed):
                given = parameters if is_faulty else {}
                return FailingAdapter(given.get("fault", ""), given.get("at", 0))

            return tasks_from(build, *DATA, options)

        super().__init__(directory, options, tasks, plan_single_block(1 + n_ranks, ranks_per_worker=per_worker), **how)

    def endpoints_at(self, position):
        kind = "together" if self.plan.ranks_per_worker == 1 else "ring"
        return super().endpoints_at(position).replaced(**({kind: self._together[position]} if position else {}))

    def act(self, number) -> bool:
        """Let one rank take in a message or train a batch; -> whether there was anything to do."""
        worker = self._places[1 + number].worker
        return self._deliver(1 + number) or (worker is not None and self._work(worker))


def options_of(**changes):
    return linear_teams.options_of(**{"mode": "allreduce", **changes})


#: (ranks, ranks of a worker, options)
KINDS = [
    pytest.param(3, 1, {}, id="allreduce"),
    pytest.param(4, 2, {"mode": "downpour", "synchronous": True}, id="rings"),
    pytest.param(4, 2, {"mode": "easgd", "sync_every": 3, "synchronous": True}, id="rings with local steps"),
    pytest.param(3, 3, {"mode": "downpour"}, id="one ring"),
]


@pytest.mark.parametrize(("n_ranks", "per_worker", "changes"), KINDS)
def test_groups_train(tmp_path, n_ranks, per_worker, changes):
    team = GroupTeam(tmp_path, options_of(**changes, epochs=6), n_ranks, per_worker)
    finish(team)
    losses = val_losses(team)
    assert len(losses) == 6
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_ranks_that_average_take_the_steps_of_one(tmp_path, n_ranks):
    """With all samples in one step it does not matter who has which: the mean over all is the same gradient."""
    team = GroupTeam(tmp_path, options_of(batch=N_TRAIN // n_ranks, epochs=5), n_ranks)
    finish(team)
    x, y = DATA.source.read(np.arange(N_TRAIN))
    serial, gradient = LinearAdapter(N_FEATURES), np.empty(N_FEATURES + 1, np.float32)
    serial.read_weights(weights := np.empty(N_FEATURES + 1, np.float32))
    for _ in range(5):
        serial.gradient(x, y, gradient)
        weights -= np.float32(RATE) * gradient
        serial.write_weights(weights)
    np.testing.assert_allclose(central_of(team), weights, rtol=1e-4, atol=1e-5)


BESIDE = {"ema": 0.7, "global_clip_norm": 0.5, "weight_decay": 0.1}


@pytest.mark.parametrize("optimizer", [("adam", {}), ("sgd", {"momentum": 0.9})], ids=["adam", "momentum"])
@pytest.mark.parametrize("beside", [{}, BESIDE], ids=["", "average"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (3, 1), (1, 2), (2, 2)])
def test_the_optimizer_of_ranks_that_average_resumes_on_any_number_of_them(tmp_path, before, after, optimizer, beside):
    """With all samples in one step, the number of ranks changes nothing but rounding."""

    def team_of(folder, n_ranks):
        how = {"optimizer": optimizer[0], "optimizer_params": optimizer[1], "epochs": 6, **beside}
        return GroupTeam(tmp_path / folder, options_of(batch=N_TRAIN // n_ranks, **how), n_ranks)

    finish(whole := team_of("whole", before))
    first = team_of("parts", before)
    first.run_fold()
    while len(first.reported(msg.EpochReported)) < 3:
        assert first.step()
    finish(again := team_of("parts", after))
    assert [report.epoch for report in again.reported(msg.EpochReported)] == [4, 5, 6]
    np.testing.assert_allclose(central_of(again), central_of(whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n_ranks", "per_worker", "changes"), KINDS)
@pytest.mark.parametrize("at", [0, 3, 4])
@pytest.mark.parametrize("last", [False, True])
def test_a_rank_that_cannot_take_its_weights_fails_the_fold(tmp_path, n_ranks, per_worker, changes, at, last):
    """At the start, in the middle of a pass, and at the end of one (4 steps of 3 or 4 ranks)."""
    faulty = n_ranks if last else 1
    for seed in range(6):
        team = GroupTeam(tmp_path / str(seed), options_of(**changes), n_ranks, per_worker, faulty)
        failed = fail(team, seed, {"fault": "write", "at": at})
        assert "no weights, please" in failed.reason
        assert failed.world_rank == faulty


@pytest.mark.parametrize(("n_ranks", "per_worker", "changes"), KINDS)
@pytest.mark.parametrize("last", [False, True])
def test_a_rank_that_cannot_be_restored_fails_the_fold(tmp_path, n_ranks, per_worker, changes, last):
    first = GroupTeam(tmp_path, options_of(**changes, checkpoint_interval=1), n_ranks, per_worker)
    step_to_an_epoch(first)
    faulty = n_ranks if last else 1
    again = GroupTeam(tmp_path, options_of(**changes), n_ranks, per_worker, faulty)
    failed = fail(again, point={"fault": "restore"})
    assert "no state, please" in failed.reason
    assert failed.world_rank == faulty


@pytest.mark.parametrize(("n_ranks", "per_worker", "changes"), KINDS)
def test_after_a_failure_the_same_ranks_train_the_next_trial(tmp_path, n_ranks, per_worker, changes):
    team = GroupTeam(tmp_path / "a", options_of(**changes), n_ranks, per_worker, faulty=n_ranks)
    fail(team, point={"fault": "write", "at": 2})
    finish(team, trial=1)
    alone = GroupTeam(tmp_path / "b", options_of(**changes), n_ranks, per_worker)
    finish(alone, trial=1)
    assert np.array_equal(central_of(team, 1), central_of(alone, 1))


class SharingGroups(GroupTeam):
    shares = True


@pytest.mark.parametrize(("n_ranks", "per_worker", "changes"), KINDS[1:])
def test_members_read_the_weights_of_their_leader_in_memory_or_are_sent_them(tmp_path, n_ranks, per_worker, changes):
    teams = [
        kind(tmp_path / kind.__name__, options_of(**changes), n_ranks, per_worker)
        for kind in (GroupTeam, SharingGroups)
    ]
    for team in teams:
        finish(team)
    sent, read = ([d.payload is not None for d in team.delivered(msg.GroupStep)] for team in teams)
    assert all(sent)
    assert not any(read)
    assert np.array_equal(*[central_of(team) for team in teams])


def test_weights_that_have_not_moved_are_not_sent_again(tmp_path):
    """A leader that computes ahead makes the next step at the same weights."""
    team = GroupTeam(tmp_path, options_of(mode="downpour"), 3, 3, apart=True)
    finish(team, 0)
    sent = [d.payload is not None for d in team.delivered(msg.GroupStep, dest=2)]
    assert sent[0]
    assert not all(sent)
