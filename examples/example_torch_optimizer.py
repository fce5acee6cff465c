"""A PyTorch training moved onto a block: its module, its `Dataset`, its AdamW with weight decay, and its scheduler.

mpirun -np 3 TrainingDriver --model examples/example_torch_optimizer.py --mode allreduce --batch 16 --epochs 15
mpirun -np 4 OptimizationDriver --model examples/example_torch_optimizer.py --mode allreduce --batch 16 --epochs 15 \
    --block-size 3 --num-iterations 6 --objective val_acc:max
"""

from nnlo_opt.space import Real


def get_model():
    """Return the network: images (n, 8, 8) to logits of ten digits."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))


get_model.parameter_range = [
    Real(1e-3, 1e-1, prior="log-uniform", name="rate"),
    Real(1e-3, 1.0, prior="log-uniform", name="decay"),
]


def get_loss():
    """A loss of `torch.nn`."""
    return "CrossEntropyLoss"


def get_optimizer(module, rate=0.01, decay=0.05):
    """AdamW, which decays matrices only; both numbers are parameters of the search."""
    import torch

    matrices = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in module.parameters() if parameter.ndim < 2]
    return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0}], rate, weight_decay=decay)


def get_scheduler(optimizer):
    """It steps after each epoch."""
    import torch

    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)


def get_train():
    """Return the data set that a `DataLoader` would get."""
    return split()[0]


def get_val():
    """Return the data set for validation."""
    return split()[1]


def split():
    """Return both parts of the digits, the same on every rank."""
    import torch
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset, random_split

    x, y = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 8, 8), torch.tensor(y))
    return random_split(digits, [1500, 297], torch.Generator().manual_seed(0))
