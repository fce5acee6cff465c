"""Requests in the inbox of a run: what becomes of each, and when its file goes."""

import json

import pytest

from nnlo_opt.app.run.start.inbox import STOPPED, Enqueue, Inbox, Stop, points_waiting, submit
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import this_process
from nnlo_opt.space import Integer, Real, Space
from tests.helpers.launcher import seen_within

SPACE = Space([Integer(1, 9, name="n"), Real(0, 1, name="x")])
POINT = {"n": 3, "x": 0.5}


def inbox_of(run, *points, space=SPACE, leader=0):
    """The inbox of a run with trials of these points, and what it has said."""
    ledger, said = Ledger(), []
    ledger.apply(ev.RunStarted(time_s=0.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={}))
    if leader:
        ledger.apply(ev.TermBegan(time_s=0.0, term=9, job=leader))
    for number, point in enumerate(points):
        ledger.apply(ev.TrialSuggested(time_s=1.0, trial=number, point=point))
    return Inbox(run, space, ledger, 60.0, lambda text, stream: said.append(text)), ledger, said


def begin(inbox, ledger, point):
    event = ev.TrialSuggested(time_s=2.0, trial=len(ledger.trials), point=point)
    ledger.apply(event)
    inbox.observe(event, ledger)
    inbox.look()


@pytest.mark.parametrize("point", [POINT, {"n": 3}])
def test_a_point_stays_in_the_inbox_until_a_trial_with_it_is_in_the_journal(tmp_path, point):
    path = submit(tmp_path, Enqueue(point=point))
    inbox, ledger, said = inbox_of(tmp_path)
    assert inbox() == [ins.Enqueue(point=point)]
    assert said[0].startswith("Enqueued: n=3")
    begin(inbox, ledger, {"n": 4, "x": 0.5})
    assert path.exists()
    assert list(points_waiting(tmp_path)) == [point]
    # The coordinator dies here, or the machine: the next start hears of it again.
    assert inbox_of(tmp_path, {"n": 4, "x": 0.5})[0]() == [ins.Enqueue(point=point)]
    begin(inbox, ledger, POINT)
    assert not path.exists()


def test_a_point_left_in_the_inbox_by_a_crash_is_removed_and_not_tried_again(tmp_path):
    path = submit(tmp_path, Enqueue(point={"n": 3}))
    inbox, _, _ = inbox_of(tmp_path, POINT)
    assert inbox() == []
    inbox.close()
    assert not path.exists()


def test_a_point_that_the_search_declines_leaves_the_inbox_with_a_sentence(tmp_path):
    path, inbox = submit(tmp_path, Enqueue(point=POINT)), inbox_of(tmp_path)
    inbox[0]()
    inbox[0].decline(POINT, "no such point")
    inbox[0].look()
    assert (path.exists(), inbox[2][-1]) == (False, "Not tried: no such point")


def test_what_has_not_been_tried_at_the_end_is_said_and_kept(tmp_path):
    path = submit(tmp_path, Enqueue(point=POINT))
    inbox, _, said = inbox_of(tmp_path)
    inbox()
    inbox.close()
    assert said[-1] == f"Not tried yet: 1 enqueued point, in `{tmp_path / 'inbox'}` for the next start."
    assert path.exists()


def test_a_stop_is_for_the_process_that_held_the_run_and_goes_when_its_consequence_is_written(tmp_path):
    mine = this_process()
    stops = [Stop(owner=mine), Stop(owner=mine, finish=True), Stop(owner=mine, trial=0)]
    paths = [submit(tmp_path, stop) for stop in [*stops, Stop(owner=mine | {"pid": 1})]]
    inbox, _, _ = inbox_of(tmp_path, POINT)
    assert inbox() == [
        ins.Preempt(reason=STOPPED, grace_s=60.0),
        ins.Drain(reason=STOPPED),
        ins.StopTrial(trial=0, reason=STOPPED),
    ]
    inbox.look()
    assert all(path.exists() for path in paths), "nothing of it is written yet"
    assert inbox() == []
    inbox.look()
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize(("leader", "heeds"), [(0, False), (2, True), (3, True), (4, False)])
def test_a_stop_of_a_shared_run_is_for_whichever_job_leads_of_those_that_had_joined(tmp_path, leader, heeds):
    for owner in ({"job": 3}, {"job": "3"}, {}, {"pid": 1}):
        submit(tmp_path, Stop(owner=owner))
    inbox, _, _ = inbox_of(tmp_path, leader=leader)
    assert inbox() == [ins.Preempt(reason=STOPPED, grace_s=60.0)] * heeds


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"request": "Pause"}', '{"request": "Enqueue", "point": {"m": 1}}', '{"request": "Stop", "owner": 3}'],
)
def test_what_is_no_request_is_left_alone_and_said_once(tmp_path, text):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox/0.json").write_text(text)
    (tmp_path / "inbox/.half.json").write_text(json.dumps(POINT))
    inbox, _, said = inbox_of(tmp_path)
    for _ in range(2):
        inbox.look()
        assert inbox() == []
    assert len(said) == 1
    assert "0.json` is ignored, because it is not a request to this run" in said[0]
    assert len(list((tmp_path / "inbox").iterdir())) == 2


def test_a_request_that_could_not_be_read_is_read_at_the_next_look(tmp_path):
    path = submit(tmp_path, Enqueue(point=POINT))
    path.replace(hidden := path.with_name(".hidden"))
    path.symlink_to("nowhere")
    inbox, _, _ = inbox_of(tmp_path)
    assert inbox() == []
    hidden.replace(path)
    inbox.look()
    assert inbox() == [ins.Enqueue(point=POINT)]


def test_a_thread_finds_what_comes_later(tmp_path):
    inbox, _, _ = inbox_of(tmp_path)
    inbox.start()
    submit(tmp_path, Enqueue(point=POINT))
    assert seen_within(60, inbox) == [ins.Enqueue(point=POINT)]
    inbox.close()
