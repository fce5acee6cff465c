import os
import signal
import threading
import time

import numpy as np
import pytest

from nnlo_opt.engine.comm.node import NOWHERE, Bell, CommonMemory, Inbox, Neighbour, Outbox

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


@pytest.fixture
def bell():
    return Bell()


@pytest.fixture
def neighbour(bell):
    neighbour = Neighbour.of(bell.handle)
    assert neighbour is not None
    return neighbour


def check_a_sleep_is_ended(bell):
    since = time.monotonic()
    bell.wait(60.0)
    assert time.monotonic() - since < 30.0


def test_a_ring_ends_a_sleep(bell, neighbour):
    threading.Timer(0.05, neighbour.ring, [0]).start()
    check_a_sleep_is_ended(bell)


def test_an_earlier_ring_ends_only_the_next_sleep(bell, neighbour):
    for _ in range(3):
        neighbour.ring(0)
    bell.wait(60.0)
    since = time.monotonic()
    bell.wait(0.02)
    assert time.monotonic() - since >= 0.02


def test_a_ring_is_heard_on_its_line_only(bell, neighbour):
    neighbour.ring(3)
    neighbour.ring(3)
    assert bell.listen(3) == 2
    assert bell.listen(4) == 0


def test_a_ring_that_was_heard_still_ends_the_next_sleep(bell, neighbour):
    """Of two transports one may have heard it before the other has looked."""
    neighbour.ring(3)
    assert bell.listen(4) == 0
    check_a_sleep_is_ended(bell)


def test_ringing_for_ever_does_no_harm(bell, neighbour):
    for _ in range(100_000):  # more than a pipe holds
        neighbour.ring(0)
    check_a_sleep_is_ended(bell)


def test_a_process_that_cannot_be_reached_is_no_neighbour(bell):
    of_another = bytearray(bell.handle)
    of_another[-1] ^= 1  # the same number, in another container
    assert Neighbour.of(bytes(of_another)) is None
    gone = (2**31 - 1).to_bytes(8, "little") + bell.handle[8:]
    assert Neighbour.of(gone) is None


def test_payloads_come_as_they_were_put_without_another_copy(neighbour):
    outbox, inbox = Outbox(), Inbox(neighbour)
    for n in (5_000, 10, 5_000):
        sent = np.arange(n, dtype=np.float32)
        place = outbox.put(sent)
        received = inbox.view(place)
        np.testing.assert_array_equal(received, sent)
        assert received.ctypes.data % 64 == 0
        sent[:] = 0
        assert received[-1] == n - 1
        inbox.n_released += 1
        outbox.n_released = inbox.n_released
    received[0] = 7  # it may be written to
    assert received[0] == 7


def test_there_is_no_room_until_the_receiver_is_through(neighbour):
    outbox, inbox = Outbox(), Inbox(neighbour)
    vector = np.ones(1_000, np.float32)
    first, second = outbox.put(vector), outbox.put(2 * vector)
    assert outbox.put(vector) is None
    assert (inbox.view(first)[0], inbox.view(second)[0]) == (1.0, 2.0)
    outbox.n_released = 1
    third = outbox.put(3 * vector)
    assert (inbox.view(third)[0], inbox.view(second)[0]) == (3.0, 2.0)


def test_room_grows_only_while_nothing_is_under_way(neighbour):
    outbox, inbox = Outbox(), Inbox(neighbour)
    small, large = np.ones(1_000, np.float32), np.ones(100_000, np.float32)
    first = outbox.put(small)
    assert outbox.put(large) is None
    outbox.n_released = 1
    second = outbox.put(large)
    assert second.generation == first.generation + 1
    assert len(inbox.view(second)) == len(large)


def test_nowhere_is_no_place():
    assert not NOWHERE.n_bytes


def test_a_lock_is_freed_when_its_holder_dies(bell, neighbour):
    memory = CommonMemory.create(64)
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        mine = neighbour.join(memory.place)
        mine.acquire(2)
        mine.bytes[0] = 7
        os.write(told, b"x")
        signal.pause()
    os.read(ready, 1)
    memory.acquire(1)  # another lock is free
    got_it = threading.Event()
    threading.Thread(target=lambda: (memory.acquire(2), got_it.set()), daemon=True).start()
    assert not got_it.wait(0.1)
    os.kill(child, signal.SIGKILL)
    assert got_it.wait(10.0)
    os.waitpid(child, 0)
    assert memory.bytes[0] == 7
    os.close(ready)
    os.close(told)


def test_memory_that_was_let_go_of_cannot_be_joined(neighbour):
    place = CommonMemory.create(64).place
    with pytest.raises(OSError, match="No such file"):
        neighbour.join(place)
