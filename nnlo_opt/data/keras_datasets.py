"""A process of its own that runs Keras's loader: `python -m nnlo_opt.data.keras_datasets NAME FILE.npz`.

Keras brings hundreds of MB of TensorFlow, prints a progress bar, and has to be stopped if the network stalls; and its
loader of CIFAR-10 unpickles (Keras's own download, its hash checked by Keras), which is never done in our process.
"""

import socket
import sys

import numpy as np

#: a transfer that stands still for so long has failed
STALL_TIMEOUT_S = 20.0


def main(name: str, path: str) -> None:
    """Download the data set `name` unless Keras has it already, and write it as a `.npz` file."""
    socket.setdefaulttimeout(STALL_TIMEOUT_S)
    import keras

    (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


if __name__ == "__main__":
    main(*sys.argv[1:])
