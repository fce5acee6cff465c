import pytest

from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.transport import receive, wait_until


def test_the_wait_ends_as_soon_as_the_look_succeeds():
    looks = iter([False, False, True])
    assert wait_until(lambda: next(looks))
    assert next(looks, "used up") == "used up"


def test_a_wait_without_time_looks_once_and_gives_up():
    looks = iter([False, True])
    assert not wait_until(lambda: next(looks), timeout_s=0.0)
    assert next(looks)


def test_what_the_look_raises_ends_the_wait():
    class FailedRankError(Exception):
        pass

    def look():
        raise FailedRankError

    with pytest.raises(FailedRankError):
        wait_until(look)


def test_a_wait_for_messages_can_be_interrupted():
    ends = [LoopbackNetwork(1).end(0)]
    asked = iter([False, True])
    assert receive(ends, until=lambda: next(asked)) is None
    assert receive(ends, timeout_s=0.0) is None
