"""Training loops of torch on ranks that average gradients, as in Horovod's `pytorch_mnist.py`, against one process."""

import copy
import sys

import numpy as np
import pytest
import torch

import nnlo_opt.allreduce as hvd
from nnlo_opt.core.base.errors import ConfigurationError


class Net(torch.nn.Module):
    """Network with a sparse gradient, a buffer, and a parameter that only the last rank uses."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(20, 4, sparse=True)
        self.out = torch.nn.Linear(12, 2)
        self.norm = torch.nn.BatchNorm1d(12)
        self.rare = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor, is_last: bool) -> torch.Tensor:
        found = self.out(self.norm(self.rows(x).flatten(1)))
        return found + self.rare if is_last else found


def step(net: Net, optimizer: torch.optim.Optimizer, number: int, ranks: range) -> None:
    """Add up the gradients of the batches of these ranks, divided by their number, and make a step."""
    optimizer.zero_grad()
    for rank in ranks:
        rng = np.random.default_rng([number, rank])
        x, y = torch.from_numpy(rng.integers(0, 20, (8, 3))), torch.from_numpy(rng.integers(0, 2, 8))
        loss = torch.nn.functional.cross_entropy(net(x, rank == hvd.size() - 1), y)
        (loss / len(ranks)).backward()
    optimizer.step()


def trains_like_one_process(compression: str, tolerance: float) -> None:
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(rank)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    if rank == 0:  # only its optimizer has velocities
        step(net, optimizer, 0, range(1))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    alone = copy.deepcopy(net)
    single = torch.optim.SGD(alone.parameters(), lr=0.5)
    single.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert single.param_groups[0]["lr"] == 0.1
    settings = {"compression": compression, "gradient_predivide_factor": 1.0, "backward_passes_per_step": 2}
    assert hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), **settings) is optimizer
    for number in range(4):
        step(net, optimizer, number, range(rank, rank + 1))
        step(alone, single, number, range(size))
    for (name, ours), theirs in zip(net.named_parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=tolerance, rtol=0, err_msg=name)
        assert torch.equal(ours, hvd.broadcast(ours, 0)), "the same bits on all ranks"


def steps_along_what_was_averaged() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.synchronize()
    weight.grad.clamp_(max=1.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert weight.tolist() == [-1.5 if hvd.size() > 1 else -1.0] * 2
    with pytest.raises(ConfigurationError, match=r"averages gradients before `step`\. Received: a closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ConfigurationError, match="must wrap an optimizer only once"):
        hvd.DistributedOptimizer(optimizer)


def keeps_tensors() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.int64):
        tensor = torch.ones((), dtype=dtype)
        for found in (hvd.allreduce(tensor), hvd.broadcast_object([tensor])[0]):
            assert (found.dtype, found.shape, bool(found)) == (dtype, (), True)


def different_rates() -> None:
    """`ReduceLROnPlateau` on each rank's own loss, which rises on rank 1 alone."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for number in range(3):
        weight.sum().backward()
        optimizer.step()
        scheduler.step(number * (1.0 if hvd.rank() else -1.0))


if __name__ == "__main__":
    hvd.init()
    if "different_rates" in sys.argv:
        different_rates()
    trains_like_one_process(hvd.Compression.none, 1e-6)
    trains_like_one_process(hvd.Compression.fp16, 1e-2)
    steps_along_what_was_averaged()
    keeps_tensors()
    print(f"rank {hvd.rank()} is through", flush=True)
