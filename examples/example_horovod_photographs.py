"""A small convolutional network with its own data pipeline, written for Horovod: two kinds of photographs.

The images are crops of the two photographs that scikit-learn ships, a temple and a flower; crops of the right parts
test. They stand for the cats and dogs of `tensorflow_datasets`, which are a download.

mpirun -np 3 python examples/example_horovod_photographs.py
"""

import sys

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_sample_images
from tensorflow import keras
from tensorflow.keras.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D
from tensorflow.keras.models import Sequential

import nnlo_opt.allreduce as hvd

hvd.init()

opt = tf.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt)


def create_model():
    """The network of the cats and dogs."""
    model = Sequential(
        [
            Input((64, 64, 3)),
            Conv2D(32, (3, 3), activation="relu"),
            MaxPooling2D(pool_size=(2, 2)),
            Conv2D(32, (3, 3), activation="relu"),
            MaxPooling2D(pool_size=(2, 2)),
            Flatten(),
            Dense(units=128, activation="relu"),
            Dense(units=1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer=opt, loss="binary_crossentropy", metrics=["accuracy"])
    return model


def crops(columns, n, seed):
    """`n` crops of 40 x 40 pixels between two columns of each photograph, in mixed order, with the photograph."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    corners = [(rng.integers(0, 427 - 40), rng.integers(columns[0], columns[1] - 40)) for _ in range(n)]
    photographs = load_sample_images().images
    parts = [photographs[k][i : i + 40, j : j + 40] for k, (i, j) in zip(labels, corners, strict=True)]
    return tf.data.Dataset.from_tensor_slices((np.stack(parts), labels))


def resize(image, label):
    """An image of 64 x 64 numbers in 0..1 for each colour."""
    image = tf.image.resize(image, [64, 64]) / 255.0
    return image, label


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
]

if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))

batch_size = 32
dataset = crops((0, 420), 1024, seed=hvd.rank())
multi_worker_dataset = dataset.repeat().map(resize).shuffle(1024).batch(batch_size)
model = create_model()

epochs, steps = map(int, sys.argv[1:3] or (4, 20))
model.fit(
    multi_worker_dataset,
    callbacks=callbacks,
    steps_per_epoch=steps,
    epochs=epochs,
    verbose=1 if hvd.rank() == 0 else 0,
)

if hvd.rank() == 0:
    others = crops((420, 640), 512, seed=1000).map(resize).batch(batch_size)
    print(f"accuracy on 512 crops of other parts: {model.evaluate(others, verbose=0)[1]:.3f}")
