"""Conformance tests of transports, as scenarios.

For endpoints in one process, inherit from `TransportConformance`. For endpoints in separate processes, each process
creates a new transport for every scenario of `SCENARIOS`, in order, and calls `play(scenario, transport)`. The
transport must be new, because one endpoint may begin the next scenario before another has ended this one.

A scenario describes one endpoint as a generator, which yields while it waits.

The scenarios of `STAR_SCENARIOS` suppose less: a centre and ends that exchange messages with it only, without payloads.
The ends call the centre 0, whatever the centre calls them.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.vectors import ALIGNMENT_BYTES
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.objective_messages import CallObjective
from nnlo_opt.core.comm.run_messages import SharedFilesChanged, Shutdown
from nnlo_opt.core.comm.transport import Received, Transport, receive, wait_until

Steps = Generator[None, None, None]
Scenario = Callable[[Transport], Steps]
#: arguments: this end, its number at the centre (0: the centre), and the numbers of all ends but the centre
StarScenario = Callable[[Transport, int, Sequence[int]], Steps]

#: more turns than any scenario needs
_MOST_TURNS = 200_000
#: turns after which a message that was sent twice has come twice
_LATE_TURNS = 30
#: number of float32 values that no MPI sends eagerly (4 MB)
_N_LARGE = 1 << 20


def play(scenario: Scenario, transport: Transport, timeout_s: float = 60.0) -> None:
    """Play this endpoint's part of a scenario. Collective: every endpoint, each in its own process, must call it."""
    steps = scenario(transport)
    done = object()
    assert wait_until(lambda: next(steps, done) is done, timeout_s), f"end {transport.rank} never returns"
    assert transport.poll() is None, "more has come than was sent"
    transport.flush(timeout_s)


def play_in_turns(scenario: Scenario, ends: Sequence[Transport]) -> None:
    """Play the parts of all endpoints in this process, one step of each in turn."""
    _take_turns([scenario(end) for end in ends])
    assert all(end.poll() is None for end in ends), "more has come than was sent"


class Star(NamedTuple):
    """Star to be tested, in this process."""

    centre: Transport
    #: number of an end at the centre -> the end
    ends: Mapping[int, Transport]
    #: called after each turn; carries messages on
    between: Callable[[], object] = lambda: None


def play_star(scenario: StarScenario, star: Star) -> None:
    """Play the parts of the centre and of all ends in this process, one step of each in turn."""
    numbers, others = [*star.ends], [*star.ends.items()]
    _take_turns([scenario(end, number, numbers) for number, end in ((0, star.centre), *others)], star.between)
    for _ in range(_LATE_TURNS):
        star.between()
    assert all(end.poll() is None for end in (star.centre, *star.ends.values())), "more has come than was sent"


def _take_turns(under_way: list[Steps], between: Callable[[], object] = lambda: None) -> None:
    n_parts = len(under_way)
    for _ in range(_MOST_TURNS):
        under_way = [steps for steps in under_way if next(steps, under_way) is None]
        if not under_way:
            return
        between()
    raise AssertionError(f"{len(under_way)} of {n_parts} ends never return")


# ---------------------------------------------------------------- scenarios


def nothing_has_arrived_where_nothing_was_sent(end: Transport) -> Steps:
    """An empty endpoint answers at once, again and again; endpoints are numbered 0, 1, 2, …"""
    assert 0 <= end.rank < end.size
    for _ in range(3):
        assert end.poll() is None
        yield


def a_message_arrives_as_it_was_sent(end: Transport) -> Steps:
    """Any plain data travels from endpoint to endpoint in a circle."""
    point = {"n": 3, "x": 1e-300, "text": 'snow ☃ " \\ \n', "none": None, "list": [1, [True, "a"]], "empty": {}}
    sent = msg.RunFold(assignment=2**40, trial=end.rank, fold=0, attempt=1, point=point)
    end.send((end.rank + 1) % end.size, sent)
    received = yield from _next(end)
    before = (end.rank - 1) % end.size
    assert received.source == before
    assert received.message == msg.RunFold(assignment=2**40, trial=before, fold=0, attempt=1, point=point)
    assert received.payload is None


def an_end_may_send_to_itself(end: Transport) -> Steps:
    """The coordinator of a world of one block sends to itself."""
    end.send(end.rank, msg.Fence(assignment=7), _numbers(5))
    received = yield from _next(end)
    assert received.source == end.rank
    assert received.message == msg.Fence(assignment=7)
    _expect(received, _numbers(5))


def messages_of_one_end_arrive_in_order(end: Transport) -> Steps:
    """Short and long messages, with and without payload, come from all endpoints at once."""
    n_messages = 60
    for number in range(n_messages):
        payload = None if number % 3 == 0 else _numbers(1 + number * number * 37 % 9000)
        for dest in range(end.size):
            end.send(dest, msg.Fence(assignment=number), payload)
        if number % 10 == 0:
            yield
    n_from = [0] * end.size
    for _ in range(n_messages * end.size):
        received = yield from _next(end)
        number = n_from[received.source]
        assert received.message == msg.Fence(assignment=number)
        _expect(received, None if number % 3 == 0 else _numbers(1 + number * number * 37 % 9000))
        n_from[received.source] += 1


def a_payload_is_copied_before_send_returns(end: Transport) -> Steps:
    """One vector is reused for all sends."""
    vector = np.empty(_N_LARGE // 8, np.float32)
    for number in range(4):
        vector[:] = number
        end.send((end.rank + 1) % end.size, msg.Fence(assignment=number), vector)
    vector[:] = -1
    for number in range(4):
        received = yield from _next(end)
        assert received.payload is not None
        assert received.payload.min() == received.payload.max() == number


def a_payload_is_float32_aligned_and_holds_until_the_next_poll(end: Transport) -> Steps:
    """A framework may alias the payload, and later messages must not change it."""
    sizes = [0, 1, 15, 16, 17, 1000, 100_000, 3]
    dest = (end.rank + 1) % end.size
    for number, size in enumerate(sizes):
        # The lengths of the messages differ, so that the payload starts at any offset.
        end.send(dest, msg.FoldFailed(assignment=number, reason="x" * (number * 101)), _numbers(size))
    for size in sizes:
        received = yield from _next(end)
        yield  # other endpoints continue to send
        yield
        _expect(received, _numbers(size))
        assert received.payload is not None
        assert not size or received.payload.ctypes.data % ALIGNMENT_BYTES == 0


def sending_never_blocks(end: Transport) -> Steps:
    """Every endpoint sends much to every other endpoint before any of them receives."""
    vector = np.full(_N_LARGE, end.rank, np.float32)
    for dest in range(end.size):
        for number in range(2):
            end.send(dest, msg.Fence(assignment=number), vector)
    yield
    for _ in range(2 * end.size):
        received = yield from _next(end)
        assert received.payload is not None
        assert received.payload.size == _N_LARGE
        assert received.payload[0] == received.payload[-1] == received.source


def what_may_not_travel_is_refused_and_leaves_no_trace(end: Transport) -> Steps:
    """A non-finite figure, an object and a vector of the wrong type are refused."""
    dest = (end.rank + 1) % end.size
    bad_value = msg.EpochReported(assignment=0, epoch=1, metrics={"loss": float("nan")})
    bad_type = CallObjective(assignment=0, point={"x": object()})
    wrong: list[tuple[msg.Message, np.ndarray | None]] = [
        (bad_value, None),
        (bad_type, None),
        (msg.Fence(assignment=0), np.zeros(3)),
        (msg.Fence(assignment=0), np.zeros((2, 2), np.float32)),
    ]
    for message, payload in wrong:
        with pytest.raises(ProtocolError):
            end.send(dest, message, payload)
    end.send(dest, msg.Fence(assignment=1))
    received = yield from _next(end)
    assert received.message == msg.Fence(assignment=1)


def a_flushed_message_needs_nothing_more_from_its_sender(end: Transport) -> Steps:
    """An endpoint may leave after `flush`: its messages arrive without another call."""
    for dest in range(end.size):
        end.send(dest, Shutdown(exit_code=end.rank), _numbers(10))
    end.flush(timeout_s=10.0)
    codes = set()
    for _ in range(end.size):
        received = yield from _next(end)
        assert received.message == Shutdown(exit_code=received.source)
        codes.add(received.source)
    assert codes == set(range(end.size))


def memory_that_one_end_shares_is_that_of_all(end: Transport) -> Steps:
    """Shared memory, if supported, is common to all endpoints, and no write under the same lock is lost."""
    n_turns, lock = 300, 3
    if end.rank == 0:
        memory = end.share(1024)
        for dest in range(end.size):
            end.send(dest, msg.Train(assignment=0, version=0, shared=[*memory.place] if memory is not None else []))
    received = yield from _next(end)
    assert isinstance(received.message, msg.Train)
    if not received.message.shared:
        return
    file, n_bytes = received.message.shared
    joined = end.join(0, (file, n_bytes))
    assert joined.bytes.shape == (1024,)
    count = joined.bytes[64:72].view(np.int64)
    for _ in range(n_turns):
        joined.acquire(lock)
        before = int(count[0])
        if end.size > 1 and end.n_processes > 1:
            time.sleep(0)  # gives other endpoints a chance to come in between
        count[0] = before + 1
        joined.release(lock)
        yield
    for dest in range(end.size):
        end.send(dest, msg.Fence(assignment=1))
    for _ in range(end.size):
        yield from _next(end)
    assert count[0] == n_turns * end.size


# ---------------------------------------------------------------- scenarios of a star


def messages_of_ends_reach_the_centre_in_order(end: Transport, number: int, ends: Sequence[int]) -> Steps:
    """All ends send to the centre at once."""
    n_messages = 20
    if number:
        for n in range(n_messages):
            end.send(0, SharedFilesChanged(trial=n, names=[f"snow ☃ {number}"]))
            if n % 7 == 0:
                yield
        return
    n_from = dict.fromkeys(ends, 0)
    for _ in range(n_messages * len(ends)):
        received = yield from _next(end)
        assert received.payload is None
        assert received.message == SharedFilesChanged(
            trial=n_from[received.source], names=[f"snow ☃ {received.source}"]
        )
        n_from[received.source] += 1


def messages_of_the_centre_reach_each_end_in_order(end: Transport, number: int, ends: Sequence[int]) -> Steps:
    """Each end gets its own messages only, and they come from 0."""
    n_messages = 20
    if number:
        for n in range(n_messages):
            received = yield from _next(end)
            assert (received.source, received.message) == (0, msg.GoOn(assignment=1000 * number + n))
        return
    for n in range(n_messages):
        for dest in ends:
            end.send(dest, msg.GoOn(assignment=1000 * dest + n))
        if n % 7 == 0:
            yield


def each_answer_follows_its_question(end: Transport, number: int, ends: Sequence[int]) -> Steps:
    """The centre asks one end after another, several times."""
    n_rounds = 3
    if number:
        for _ in range(n_rounds):
            question = (yield from _next(end)).message
            assert isinstance(question, msg.GoOn)
            end.send(0, SharedFilesChanged(trial=question.assignment, names=[]))
        return
    for n in range(n_rounds):
        for dest in ends:
            end.send(dest, msg.GoOn(assignment=n))
            received = yield from _next(end)
            assert (received.source, received.message) == (dest, SharedFilesChanged(trial=n, names=[]))


def what_the_centre_may_not_send_is_refused_and_leaves_no_trace(
    end: Transport, number: int, ends: Sequence[int]
) -> Steps:
    """Ends that do not exist, and data that are not plain or not finite."""
    if number:
        assert (yield from _next(end)).message == msg.GoOn(assignment=1)
        return
    for dest in (-2, max(ends) + 1000):
        with pytest.raises(ProtocolError):
            end.send(dest, msg.GoOn(assignment=0))
    for value in (float("nan"), object()):
        with pytest.raises(ProtocolError):
            end.send(ends[0], msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={"x": value}))
    yield
    for dest in ends:
        end.send(dest, msg.GoOn(assignment=1))


#: all scenarios of a star
STAR_SCENARIOS: tuple[StarScenario, ...] = (
    messages_of_ends_reach_the_centre_in_order,
    messages_of_the_centre_reach_each_end_in_order,
    each_answer_follows_its_question,
    what_the_centre_may_not_send_is_refused_and_leaves_no_trace,
)


#: all scenarios; each is run with 1, 2 and 5 endpoints
SCENARIOS: tuple[Scenario, ...] = (
    nothing_has_arrived_where_nothing_was_sent,
    a_message_arrives_as_it_was_sent,
    an_end_may_send_to_itself,
    messages_of_one_end_arrive_in_order,
    a_payload_is_copied_before_send_returns,
    a_payload_is_float32_aligned_and_holds_until_the_next_poll,
    sending_never_blocks,
    what_may_not_travel_is_refused_and_leaves_no_trace,
    a_flushed_message_needs_nothing_more_from_its_sender,
    memory_that_one_end_shares_is_that_of_all,
)


class TransportConformance:
    """Test class to inherit from for a custom transport; define `make`.

    >>> class TestMine(TransportConformance):
    ...     @staticmethod
    ...     def make(size):
    ...         return [MyTransport(rank, size) for rank in range(size)]
    """

    @staticmethod
    def make(size: int) -> Sequence[Transport]:
        """Return `size` connected endpoints in this process."""
        raise NotImplementedError("A suite must have a static method `make`, as its docstring shows.")

    @pytest.mark.parametrize("size", [1, 2, 5])
    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
    def test_scenario(self, scenario: Scenario, size: int) -> None:
        play_in_turns(scenario, self.make(size))

    def test_receive_finds_what_came_on_any_of_several_transports(self) -> None:
        first, second = self.make(1)[0], self.make(1)[0]
        assert receive([first, second], timeout_s=0.0) is None
        second.send(0, msg.Fence(assignment=3))
        found = receive([first, second], timeout_s=10.0)
        assert found is not None
        assert found[0] is second
        assert found[1].message == msg.Fence(assignment=3)


class StarConformance:
    """Test class to inherit from for a star without payloads; define `make`."""

    @staticmethod
    def make(n_ends: int) -> Star:
        """Return a star of a centre and `n_ends` ends."""
        raise NotImplementedError("A suite must have a static method `make`, as its docstring shows.")

    @pytest.mark.parametrize("n_ends", [1, 4])
    @pytest.mark.parametrize("scenario", STAR_SCENARIOS, ids=lambda scenario: scenario.__name__)
    def test_scenario_of_a_star(self, scenario: StarScenario, n_ends: int) -> None:
        play_star(scenario, self.make(n_ends))


# ---------------------------------------------------------------- helpers


def _next(end: Transport) -> Generator[None, None, Received]:
    while (received := end.poll()) is None:
        yield
    return received


def _numbers(n: int) -> np.ndarray:
    """Return a vector that depends on its length only, float32, shape (n,)."""
    return (np.arange(n, dtype=np.float32) + n) / 7


def _expect(received: Received, payload: np.ndarray | None) -> None:
    if received.payload is None or payload is None:
        assert received.payload is payload
    else:
        np.testing.assert_array_equal(received.payload, payload, strict=True)
