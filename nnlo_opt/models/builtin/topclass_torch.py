"""Torch model of images of collisions (150 x 94 x 5) in three classes, with data from `GetData topclass`."""

from itertools import pairwise
from typing import Any

from nnlo_opt.models.builtin.topclass import get_features, get_labels, get_train, get_val
from nnlo_opt.space import Integer, Real

__all__ = ["get_features", "get_labels", "get_train", "get_val"]


def get_model(conv_layers: int = 2, dense_layers: int = 2, dropout: float = 0.5) -> Any:
    """Return a classifier whose convolutions end in one image of 10 x 10."""
    import torch
    from torch import nn

    channels = [5, *(max(1, 5 * ((number + 2) % 5)) for number in range(conv_layers))]
    sizes = [100 // 2**number for number in range(dense_layers + 1)]

    class Collisions(nn.Module):
        """Images (n, 150, 94, 5) to scores of three classes."""

        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            for n_in, n_out in pairwise(channels):
                layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(channels[-1], 1, 3, stride=2, padding=1), nn.Dropout(dropout)]
            layers += [nn.AdaptiveMaxPool2d(10), nn.Flatten()]
            for n_in, n_out in pairwise(sizes):
                layers += [nn.Linear(n_in, n_out), nn.ReLU()]
            self.layers = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(sizes[-1], 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.permute(0, 3, 1, 2))

    return Collisions()


parameter_range = [
    Integer(1, 6, name="conv_layers"),
    Integer(1, 6, name="dense_layers"),
    Real(0.0, 0.9, name="dropout"),
]
