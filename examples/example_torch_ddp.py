"""A training in plain PyTorch that is spread over the ranks of a block by DistributedDataParallel.

mpirun -np 5 OptimizationDriver --model examples/example_torch_ddp.py --block-size 2 --num-iterations 20
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nnlo_opt
from nnlo_opt.space import Integer, Real

N_POINTS, BATCH, N_EPOCHS = 4_000, 100, 5


def objective(parameters, comm, report):
    """Mean squared error of a network that fits a curve, on fresh points: lower is better."""
    with nnlo_opt.torch_process_group(comm) as device:
        torch.manual_seed(1)
        n_units = parameters["n_units"]
        network = nn.Sequential(nn.Linear(1, n_units), nn.Tanh(), nn.Linear(n_units, 1)).to(device)
        model = DistributedDataParallel(network)
        optimizer = torch.optim.Adam(model.parameters(), lr=parameters["learning_rate"])
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        x, y = noisy_points(rank, N_POINTS // size, device)
        x_validation, y_validation = noisy_points(size, N_POINTS // 10, device)
        error = float("inf")
        for epoch in range(1, N_EPOCHS + 1):
            for batch in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[batch]), y[batch]).backward()  # averages the gradients of all ranks
                optimizer.step()
            with torch.no_grad():
                error = nn.functional.mse_loss(network(x_validation), y_validation).item()
            if not report(epoch, error):
                break
        return error


objective.parameter_range = [
    Integer(4, 64, prior="log-uniform", name="n_units"),
    Real(1e-3, 1e-1, prior="log-uniform", name="learning_rate"),
]


def noisy_points(seed, n, device):
    """Points (n, 1) and what was measured there (n, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(n, 1, generator=generator) - 3
    y = torch.sin(3 * x) / (1 + x**2) + 0.05 * torch.randn(n, 1, generator=generator)
    return x.to(device), y.to(device)
