"""Liveness of a job."""

from nnlo_opt.core.jobs.liveness import Timing, Watch

TIMING = Timing(beat_s=20.0, limit_s=120.0)


def watched(*looks):
    watch = Watch(TIMING)
    for n_lines, now_s in looks:
        watch.look(n_lines, now_s)
    return watch


def test_a_log_that_has_not_grown_for_longer_than_the_limit_is_silent():
    looks = [(1, 0.0), *((1, float(s)) for s in range(1, 121))]
    assert not watched(*looks).is_silent
    assert watched(*looks, (1, 121.0)).is_silent
    assert not watched(*looks, (2, 121.0)).is_silent


def test_a_log_that_was_never_seen_is_silent_in_the_end():
    assert watched(*((0, float(s)) for s in range(0, 130, 10))).is_silent is False
    assert watched(*((0, float(s)) for s in range(0, 140, 10))).is_silent


def test_an_observer_that_was_stopped_itself_looks_again():
    """Slurm stops all jobs of a user for an hour: the first that wakes up must not call the others gone."""
    watch = watched((1, 0.0), (1, 3600.0))
    assert not watch.is_silent
    watch.look(2, 3601.0)
    for s in range(119):
        watch.look(2, 3602.0 + s)
    assert not watch.is_silent
