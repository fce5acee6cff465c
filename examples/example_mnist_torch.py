"""A convolutional network in plain PyTorch that reads handwritten digits.

GetData mnist --source bundled
mpirun -np 5 OptimizationDriver --model examples/example_mnist_torch.py --block-size 2 --epochs 3 \
    --num-iterations 10
"""

from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Integer, Real


def get_name():
    """The name of outputs."""
    return "example_mnist_torch"


def get_model(nb_filters=10, pool_size=2, kernel_size=5, dense=50, dropout=0.5):
    """The model at one point of the search space."""
    # Imported here, so that reading the search space does not cost an import of PyTorch.
    import torch
    from torch import nn

    def block(n_in, n_out):
        # Padded, so that images never shrink to less than a kernel.
        convolution = nn.Conv2d(n_in, n_out, kernel_size, padding=kernel_size // 2)
        return nn.Sequential(convolution, nn.MaxPool2d(pool_size), nn.ReLU())

    class MNistNet(nn.Module):
        """Images (n, 28, 28, 1) to log-probabilities of ten digits."""

        def __init__(self):
            super().__init__()
            self.convolutions = nn.Sequential(block(1, nb_filters), nn.Dropout2d(dropout), block(nb_filters, 20))
            n_features = self.convolutions(torch.zeros(1, 1, 28, 28)).numel()
            self.classifier = nn.Sequential(
                nn.Flatten(),
                nn.Linear(n_features, dense),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(dense, 10),
                nn.LogSoftmax(dim=1),
            )

        def forward(self, x):
            # The data have channels last, PyTorch wants them first.
            return self.classifier(self.convolutions(x.permute(0, 3, 1, 2)))

    return MNistNet()


# `train.batch`, `train.learning_rate` and other training options can be searched too: see search_spaces/mnist.py.
get_model.parameter_range = [
    Integer(8, 32, name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 10, name="kernel_size"),
    Integer(50, 200, name="dense"),
    Real(0.0, 0.7, name="dropout"),
]


def get_train():
    """The list of training files."""
    return find_list("data/mnist/train_mnist.list", "GetData mnist")


def get_val():
    """The list of validation files."""
    return find_list("data/mnist/test_mnist.list", "GetData mnist")


def get_features():
    """Images (n, 28, 28, 1), float32 in 0..1."""
    return "features"


def get_labels():
    """One-hot classes (n, 10)."""
    return "labels"
