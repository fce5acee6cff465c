import pytest

from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.messages import Fence
from nnlo_opt.core.comm.transport import RanksLost
from nnlo_opt.testing.transport_conformance import Star, StarConformance, TransportConformance


class TestLoopback(TransportConformance):
    @staticmethod
    def make(size):
        network = LoopbackNetwork(size)
        return [network.end(rank) for rank in range(size)]


class TestLoopbackThatShares(TransportConformance):
    @staticmethod
    def make(size):
        network = LoopbackNetwork(size, shares=True)
        return [network.end(rank) for rank in range(size)]


class TestLoopbackAsStar(StarConformance):
    @staticmethod
    def make(n_ends):
        network = LoopbackNetwork(1 + n_ends)
        return Star(network.end(0), {rank: network.end(rank) for rank in range(1, 1 + n_ends)})


def test_two_handles_of_one_end_share_what_was_sent_to_it():
    network = LoopbackNetwork(2)
    network.end(0).send(1, Fence(assignment=4))
    assert network.end(1).poll().message == Fence(assignment=4)
    assert network.end(1).poll() is None


def test_what_an_end_sent_before_it_was_lost_still_arrives_and_then_its_loss():
    network = LoopbackNetwork(3)
    needs_it, does_not = network.end(1, vital=[0]), network.end(2)
    for dest in (1, 2):
        network.end(0).send(dest, Fence(assignment=4))
    network.lose(0)
    assert needs_it.poll().message == does_not.poll().message == Fence(assignment=4)
    assert does_not.poll() is None
    assert does_not.lost == {0}
    for _ in range(2):
        with pytest.raises(RanksLost):
            needs_it.poll()
    does_not.send(0, Fence(assignment=5))
    assert not network.queues[0]


def test_no_handler_of_errors_takes_a_loss_for_one():
    assert not issubclass(RanksLost, Exception)
