from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.messages import Fence
from nnlo_opt.testing.transport_conformance import TransportConformance


class TestLoopback(TransportConformance):
    @staticmethod
    def make(size):
        network = LoopbackNetwork(size)
        return [network.end(rank) for rank in range(size)]


def test_two_handles_of_one_end_share_what_was_sent_to_it():
    network = LoopbackNetwork(2)
    network.end(0).send(1, Fence(assignment=4))
    assert network.end(1).poll().message == Fence(assignment=4)
    assert network.end(1).poll() is None
