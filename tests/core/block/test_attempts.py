"""Masters that work on a fold that another attempt has taken over: what they write changes nothing for it."""

import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials.attempts import attempt_directory
from nnlo_opt.core.trials.checkpoint import load_weights
from tests.helpers.effort import some_of
from tests.helpers.linear_teams import history_of, options_of, place_of, team_of
from tests.helpers.struck_files import content_of, stopped_at

#: Adam, so that what is not restored exactly shows
OPTIONS = options_of(epochs=4, optimizer="adam", synchronous=True)
#: so many epochs are done before an attempt that is not the first
N_BEFORE = 2


def folder_of(directory, number):
    return attempt_directory(directory, 0, 0, (1, number))


def result_of(directory):
    """What the last attempt has left, but for times."""
    weights, state = load_weights(place_of(directory))
    return weights.tobytes(), state.tobytes(), history_of(directory)


def begun(directory, number):
    """A team that has the order for this attempt, which follows those of smaller numbers."""
    team, before = team_of(directory, OPTIONS), [(1, n) for n in range(number)]
    team.order(msg.RunFold(assignment=number, trial=0, fold=0, attempt=1, point={}, term=1, before=before))
    return team


def go_on(team, n_epochs):
    """Train so many epochs, or to the end."""
    while len(team.reported(msg.EpochReported)) < n_epochs and team.step():
        pass


def stopped(monkeypatch, directory, number, moment=-1, act=None):
    """Let attempt `number` stand still at a moment; the number of moments until it has ended."""
    if number:
        go_on(begun(directory, number - 1), N_BEFORE)
    team = begun(directory, number)
    with stopped_at(monkeypatch, moment, act) as struck:
        team.settle()
    return struck.n_moments


@pytest.mark.parametrize("stride", some_of([13, 1]))
@pytest.mark.parametrize("first", [0, 1], ids=["in its training", "in taking over"])
def test_a_master_that_wakes_up_changes_nothing_for_the_attempt_after_it(tmp_path, monkeypatch, first, stride):
    whole = begun(tmp_path / "whole", 0)
    whole.settle()
    expected = result_of(tmp_path / "whole")
    n_moments = stopped(monkeypatch, tmp_path / "counted", first)
    n_done = set()
    for moment in range(0, n_moments, stride):
        run = tmp_path / str(moment)
        teams, seen = [], []

        def take_over(run=run, teams=teams, seen=seen):
            teams.append(begun(run, first + 1))
            go_on(teams[0], 1)
            seen.append(content_of(folder_of(run, first + 1)))

        stopped(monkeypatch, run, first, moment, take_over)
        folder = folder_of(run, first + 1)
        assert content_of(folder) == seen[0], moment
        assert isinstance(teams[0].settle(), msg.FoldFinished), moment
        assert result_of(run) == expected, moment
        n_done.add(teams[0].reported(msg.FoldStarted)[0].epoch)
    assert n_done == set(range(N_BEFORE if first else 0, OPTIONS.epochs + 1)), n_done


def test_a_preempted_attempt_keeps_its_checkpoint_although_its_end_is_recorded(tmp_path):
    """The job that has to go ends it, and another goes on."""
    team = begun(tmp_path, 0)
    go_on(team, 1)
    team.order(msg.PreemptFold(assignment=0))
    assert isinstance(team.settle(), msg.FoldStopped)
    team.order(msg.FoldRecorded(assignment=0))
    team.settle()
    again = begun(tmp_path, 1)
    again.settle()
    assert again.delivered(msg.Train)[0].message.position is not None
    assert [path.name for path in (place_of(tmp_path).parent).iterdir()] == ["attempt-1-1"]
    again.order(msg.FoldRecorded(assignment=1))
    again.settle()
    assert sorted(path.name for path in place_of(tmp_path).iterdir()) == ["history.json", "weights.npz"]
