from itertools import pairwise

import pytest

from nnlo_opt.core.jobs.liveness import DEFAULT_TIMING, Timing
from nnlo_opt.core.jobs.pace import FAST_S, PART, SLOW_S, Pace


def looks(pace, until_s, found_at=()):
    """Return the times of all looks before `until_s`; a message is there from each second of `found_at` on."""
    now_s, times, waiting = 0.0, [], sorted(found_at)
    while now_s < until_s:
        found = bool(waiting) and waiting[0] <= now_s
        waiting = waiting[1:] if found else waiting
        pace.look(now_s, found=found)
        times.append(now_s)
        now_s += pace.left_s(now_s)
    return times


def test_the_first_look_is_due_at_once():
    assert Pace(DEFAULT_TIMING).left_s(50.0) == 0.0


def test_a_long_computation_is_looked_at_once_a_second():
    assert looks(Pace(DEFAULT_TIMING), 600.0) == [SLOW_S * n for n in range(600)]


def test_after_a_message_looks_become_rarer():
    times = looks(Pace(DEFAULT_TIMING), 60.0, found_at=[0.0])
    for time, later in pairwise(times):
        assert later - time == pytest.approx(min(max(FAST_S, PART * time), SLOW_S))
    assert len([time for time in times if time >= 30.0]) == 30


def test_messages_that_go_on_keep_it_fast():
    times = looks(Pace(DEFAULT_TIMING), 30.0, found_at=range(30))
    assert len(times) == pytest.approx(30.0 / FAST_S, rel=0.05)


def test_a_job_looks_often_enough_to_be_alive():
    assert looks(Pace(Timing(beat_s=0.5)), 5.0) == [0.5 * n for n in range(10)]


def test_what_is_due_almost_now_is_due():
    pace = Pace(DEFAULT_TIMING)
    pace.look(10.0, found=False)
    assert pace.left_s(10.9) == pytest.approx(0.1)
    assert pace.left_s(10.96) == 0.0
