"""Interaction network that tags jets (JEDI-net, arXiv:1908.05318) in torch, with data from `GetData jets`.

Every pair of constituents has an effect on one of them (`fr`); a constituent and the sum of the effects on it make its
output (`fo`); the sum of all outputs is classified (`fc`).
"""

from typing import Any

from nnlo_opt.models.builtin.hls4mlgru import get_features, get_labels, get_train, get_val
from nnlo_opt.space import Categorical, Integer

__all__ = ["get_features", "get_labels", "get_train", "get_val"]


def get_model(hidden: int = 50, De: int = 14, Do: int = 10, n_particles: int = 30, activation: str = "relu") -> Any:
    """Return the network for the `n_particles` hardest constituents; its work grows as their square."""
    import torch
    from torch import nn

    nonlinear = {"relu": nn.ReLU, "selu": nn.SELU, "elu": nn.ELU}[activation]

    def perceptron(n_in: int, n_out: int) -> nn.Module:
        inner = nn.Sequential(nn.Linear(n_in, hidden), nonlinear(), nn.Linear(hidden, hidden // 2), nonlinear())
        return nn.Sequential(*inner, nn.Linear(hidden // 2, n_out))

    class InteractionNetwork(nn.Module):
        """Features (n, 16, 150) to scores of five classes."""

        def __init__(self) -> None:
            super().__init__()
            self.n_particles = n_particles
            self.fr, self.fo, self.fc = perceptron(32, De), perceptron(16 + De, Do), perceptron(Do, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n = self.n_particles
            x = x[:, :, :n].transpose(1, 2)
            receiver = x[:, :, None].expand(-1, -1, n, -1)
            effects = torch.relu(self.fr(torch.cat([receiver, receiver.transpose(1, 2)], 3)))
            own = torch.eye(n, device=x.device)[:, :, None]  # no constituent acts on itself
            outputs = torch.relu(self.fo(torch.cat([x, (effects * (1 - own)).sum(2)], 2)))
            return self.fc(outputs.sum(1))

    return InteractionNetwork()


parameter_range = [
    Integer(10, 100, name="hidden"),
    Integer(4, 50, name="De"),
    Integer(4, 50, name="Do"),
    Categorical(["relu", "selu", "elu"], name="activation"),
]
