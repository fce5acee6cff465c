"""Model of speedup.py and momentum.py: a perceptron of torch each of whose batches ends with a wait for a device.

The wait, `DEVICE_MS` of the environment, takes no core: ranks that share two cores are then in nobody's way, as ranks
are that have a GPU each, and all else (gradients, exchange, optimizer) is what it is. `DEVICE_HIDDEN`: hidden units.
"""

import os
import time

from nnlo_opt.space import Categorical, Integer

WAIT_S = float(os.environ.get("DEVICE_MS", "0")) / 1000
N_HIDDEN = int(os.environ.get("DEVICE_HIDDEN", "44"))


def get_model(repeat=0):
    """A model; `repeat` only makes points differ."""
    import torch
    from torch import nn

    class Device(nn.Module):
        def forward(self, x):
            if self.training and torch.is_grad_enabled():
                time.sleep(WAIT_S)
            return x

    layers = nn.Flatten(), nn.Linear(784, N_HIDDEN), nn.ReLU(), nn.Linear(N_HIDDEN, 10), nn.LogSoftmax(dim=1)
    return nn.Sequential(Device(), *layers)


get_model.parameter_range = [
    Integer(0, 99, name="repeat"),
    Categorical([False, True], name="train.momentum_correction"),
]
