"""Torch model of handwritten digits, 28 x 28 pixels in grey, with data from `GetData mnist`."""

from typing import Any

from nnlo_opt.models.builtin.mnist import get_features, get_labels, get_train, get_val
from nnlo_opt.space import Integer, Real

__all__ = ["get_features", "get_labels", "get_train", "get_val"]


def get_model(kernel_size: int = 5, dense: int = 50, dropout: float = 0.5) -> Any:
    """Return a model of two padded convolutions with poolings, and two dense layers."""
    import torch
    from torch import nn

    class Digits(nn.Module):
        """Images (n, 28, 28, 1) to scores of ten digits."""

        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            size = 28
            for n_in, n_out in ((1, 10), (10, 20)):
                layers += [nn.Conv2d(n_in, n_out, kernel_size, padding=kernel_size // 2), nn.MaxPool2d(2), nn.ReLU()]
                size = (size + 1 - kernel_size % 2) // 2
            layers += [nn.Dropout2d(dropout), nn.Flatten(), nn.Linear(20 * size**2, dense), nn.ReLU()]
            self.layers = nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(dense, 10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.permute(0, 3, 1, 2))

    return Digits()


parameter_range = [
    Integer(2, 10, name="kernel_size"),
    Integer(50, 200, name="dense"),
    Real(0.0, 0.9, name="dropout"),
]
