"""Folders of the attempts at a fold, in a run that several jobs share."""

import numpy as np
import pytest

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials import attempts, checkpoint, manifest
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import HISTORY_NAME, WEIGHTS_NAME, Checkpoint
from nnlo_opt.core.trials.kept_weights import WeightKeeper, weights_of
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import START, assigned, completed, finished, suggested, trial
from tests.helpers.struck_files import content_of, stopped_at

#: an attempt of a run that jobs did not share yet, and two of a run that they do
FIRST, SECOND, THIRD = (0, 0), (1, 1), (2, 2)
ORDER = msg.RunFold(assignment=3, trial=7, fold=0, attempt=4, point={}, term=2, before=[FIRST, SECOND, THIRD])


def folder_of(run, identity):
    return attempts.attempt_directory(run, 7, 0, identity)


def save(run, identity, epoch):
    arrays = {"central": np.full(5, epoch, np.float32)}
    return checkpoint.save(folder_of(run, identity), Checkpoint(epoch=epoch, arrays=arrays, master={}, workers={}))


def take_over(run):
    return attempts.take_over(run, ORDER, checkpoint.load_latest)


def test_only_a_run_that_jobs_share_has_folders_of_attempts(tmp_path):
    fold = tmp_path / "trials/0007/fold0"
    assert str(folder_of(tmp_path, FIRST)) == str(fold)
    assert str(folder_of(tmp_path, (3, 17))) == str(fold / "attempt-3-17")
    assert str(attempts.ordered_directory(tmp_path, ORDER)) == str(fold / "attempt-2-3")
    assert str(attempts.ordered_directory(tmp_path, ORDER.replaced(term=0))) == str(fold)


@pytest.mark.parametrize("taken", [FIRST, SECOND, THIRD])
def test_an_attempt_takes_the_checkpoint_of_the_last_attempt_that_has_one_and_removes_the_rest(tmp_path, taken):
    """One of an earlier attempt can only be newer if it was written after its end."""
    for identity, epoch in ((FIRST, 9), (SECOND, 8), (THIRD, 7)):
        if identity <= taken:
            place = save(tmp_path, identity, epoch)
        checkpoint.save_weights(folder_of(tmp_path, identity), np.zeros(5, np.float32), np.zeros(0, np.float32))
        (folder_of(tmp_path, identity) / HISTORY_NAME).write_bytes(b"{}")
    found = take_over(tmp_path)
    assert found.place == attempts.ordered_directory(tmp_path, ORDER) / place.name
    assert np.array_equal(checkpoint.load(found.place).arrays["central"], found.arrays["central"])
    assert [str(path) for path in (tmp_path / "trials/0007/fold0").rglob("*") if path.is_dir()] == [
        str(found.place.parent), str(found.place)
    ]  # fmt: skip
    assert take_over(tmp_path).place == found.place


def test_a_damaged_checkpoint_is_passed_over_and_without_one_nothing_is_removed(tmp_path):
    assert take_over(tmp_path) is None
    places = [save(tmp_path, SECOND, 2), save(tmp_path, THIRD, 3)]
    (places[1] / "manifest.json").unlink()
    assert take_over(tmp_path).epoch == 2
    for place in (save(tmp_path, THIRD, 3), attempts.ordered_directory(tmp_path, ORDER) / "checkpoint-2"):
        (place / "master.json").unlink()
    before = content_of(folder_of(tmp_path, FIRST))
    assert take_over(tmp_path) is None
    assert content_of(folder_of(tmp_path, FIRST)) == before


def test_no_link_is_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    save(elsewhere, FIRST, 3)
    before = content_of(SafePath(elsewhere))
    folder_of(tmp_path, FIRST).root.joinpath("trials/0007/fold0").mkdir(parents=True)
    folder_of(tmp_path, THIRD).symlink_to(str(folder_of(elsewhere, FIRST)))
    assert take_over(tmp_path) is None
    attempts.forget(folder_of(tmp_path, THIRD))
    assert content_of(SafePath(elsewhere)) == before


def test_a_checkpoint_that_cannot_be_moved_is_read_where_it_is(tmp_path, caplog):
    place = save(tmp_path, SECOND, 3)
    attempts.ordered_directory(tmp_path, ORDER).write_bytes(b"")
    assert take_over(tmp_path).place == place
    assert "could not be moved" in caplog.text


def test_a_checkpoint_that_is_being_removed_is_taken_whole_or_not_at_all(tmp_path, monkeypatch):
    n_taken = []

    def removed(run, moment=-1):
        save(run, THIRD, 3)
        with stopped_at(monkeypatch, moment, lambda: n_taken.append(take_over(run) is not None)) as struck:
            manifest.remove_all(folder_of(run, THIRD))
        return struck.n_moments

    for moment in range(removed(tmp_path / "counted")):
        run = tmp_path / str(moment)
        removed(run, moment)
        own = attempts.ordered_directory(run, ORDER)
        assert (checkpoint.load_latest(own) is not None) == n_taken[-1], moment
        assert not folder_of(run, THIRD).glob("checkpoint-*")
    assert {*n_taken} == {True, False}


# ---------------------------------------------------------------- by the journal


def shared(*events):
    """The ledger of a run that jobs share from term 2 on, with trial 0 that has lost an attempt before that."""
    began = ev.TermBegan(time_s=1.0, term=2, job=1)
    lost = ev.AssignmentLost(time_s=1.0, assignment=0)
    return Ledger([START, suggested(0), assigned(0), lost, began, *events])


#: the second attempt is lost, and the third finishes
TWICE = [assigned(1, attempt=2), ev.AssignmentLost(time_s=1.0, assignment=1), assigned(2, attempt=3)]
FOLD = "trials/0000/fold0"
TWO = ("attempt-2-1/weights.npz", "attempt-2-2/weights.npz")


def test_the_files_of_a_fold_are_those_of_the_attempt_that_has_finished(tmp_path):
    ledger = shared(*TWICE)
    assert [assignment.identity for assignment in ledger.assignments] == [(0, 0), (2, 1), (2, 2)]
    place = attempts.result_directory(tmp_path, ledger.trials[0], 0)
    assert str(place) == str(tmp_path / FOLD), "none has saved anything"
    checkpoint.save(attempts.attempt_directory(tmp_path, 0, 0, (2, 1)), Checkpoint(
        epoch=1, arrays={"central": np.ones(2, np.float32)}, master={}, workers={}
    ))  # fmt: skip
    place = attempts.result_directory(tmp_path, ledger.trials[0], 0)
    assert str(place) == str(tmp_path / FOLD / "attempt-2-1")
    assert checkpoint.load_weights(place)[0].tolist() == [1.0, 1.0]
    ledger.replay([finished(2), completed(0)])
    for number in (1, 2):
        folder = attempts.attempt_directory(tmp_path, 0, 0, (2, number))
        checkpoint.save_weights(folder, np.full(2, number, np.float32), np.zeros(0, np.float32))
    place = attempts.result_directory(tmp_path, ledger.trials[0], 0)
    assert str(place) == str(tmp_path / FOLD / "attempt-2-2")
    assert weights_of(tmp_path, ledger.trials[0]) == [place / WEIGHTS_NAME]


def test_a_run_that_was_never_shared_has_them_where_they_were(tmp_path):
    ledger = Ledger([START, *trial(0, 0.5)])
    assert str(attempts.result_directory(tmp_path, ledger.trials[0], 0)) == str(tmp_path / FOLD)


def test_the_weights_of_all_attempts_at_a_worse_trial_are_surplus(tmp_path):
    ledger = shared(*TWICE, finished(2, 0.9), completed(0, 0.9), suggested(1), assigned(3, 1), finished(3, 0.1))
    ledger.replay([completed(1, 0.1), ev.RunCompleted(time_s=3.0, reason="done")])
    for number, identity in ((0, (0, 0)), (0, (2, 1)), (0, (2, 2)), (1, (2, 3))):
        folder = attempts.attempt_directory(tmp_path, number, 0, identity)
        checkpoint.save_weights(folder, np.zeros(2, np.float32), np.zeros(0, np.float32))
    surplus = [str(path) for path in WeightKeeper(tmp_path).surplus(ledger, 1)]
    assert surplus == [f"{tmp_path}/{FOLD}/{name}" for name in ("weights.npz", *TWO)]
