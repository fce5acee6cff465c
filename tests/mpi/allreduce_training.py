"""Training by `model.fit` on ranks that average gradients, against one process: `python allreduce_training.py NAME...`.

Keras's backend is that of KERAS_BACKEND.
"""

import json
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import nnlo_opt.allreduce as hvd
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models.keras.framework import set_seed

#: samples of each rank in each step; the third step is shorter, as the last batch of an epoch
BATCHES = ([8, 8, 5], [4, 4, 1], [6, 6, 6])
#: learning rate of each epoch
RATES = (0.1, 0.02)
MOMENTUM = 0.9


def dense() -> keras.Model:
    """Two hidden layers, whose gradients travel in two chunks."""
    layers = [keras.Input((10,)), keras.layers.Dense(600, "tanh"), keras.layers.Dense(600, "tanh")]
    return keras.Sequential([*layers, keras.layers.Dense(3, "softmax")])


def embedding() -> keras.Model:
    """With sparse gradients on TensorFlow; the last layer is frozen, and one layer is not used."""
    layers = [keras.Input((10,)), keras.layers.Embedding(50, 4), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
    model.layers[-1].trainable = False
    return model


def batch_norm() -> keras.Model:
    layers = [keras.Input((10,)), keras.layers.Dense(16), keras.layers.BatchNormalization(momentum=0.8)]
    return keras.Sequential([*layers, keras.layers.Activation("relu"), keras.layers.Dense(3, "softmax")])


MODELS = {"dense": dense, "embedding": embedding, "batch_norm": batch_norm}


def shards(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples and labels of each rank."""
    rng = np.random.default_rng(5)
    sizes = [sum(batches) for batches in BATCHES[: hvd.size()]]
    draw = {"embedding": lambda n: rng.integers(0, 50, (n, 10))}.get(name, lambda n: rng.normal(size=(n, 10)) + 1)
    return [(np.asarray(draw(n), np.float32), rng.integers(0, 3, n)) for n in sizes]


def compiled(name: str, weights: list[np.ndarray] | None, optimizer: keras.optimizers.Optimizer) -> keras.Model:
    model = MODELS[name]()
    if weights is not None:
        model.set_weights(weights)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Steps(keras.callbacks.Callback):
    """Weights after each step; the learning rate of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[list[np.ndarray]] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.model.optimizer.learning_rate = RATES[epoch]

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.weights.append(self.model.get_weights())


def trained(name: str, compression: str = hvd.Compression.none) -> tuple[list, list[list], keras.Model]:
    """Return the first weights, those after each step, and the model; ranks begin with different ones."""
    set_seed(hvd.rank())
    optimizer = keras.optimizers.SGD(0.5, momentum=MOMENTUM)
    assert hvd.DistributedOptimizer(optimizer, compression=compression) is optimizer
    model = compiled(name, None, optimizer)
    first = [hvd.broadcast(array, 0) for array in model.get_weights()]
    steps = Steps()
    x, y = shards(name)[hvd.rank()]
    calls = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), steps]
    model.fit(x, y, batch_size=BATCHES[hvd.rank()][0], epochs=2, shuffle=False, callbacks=calls, verbose=0)
    return first, steps.weights, model


def alone(name: str, first: list[np.ndarray]) -> list[list[np.ndarray]]:
    """One process on the union batches, by Keras itself."""
    model = compiled(name, first, keras.optimizers.SGD(0.5, momentum=MOMENTUM))
    found, parts = [], shards(name)
    for rate in RATES:
        model.optimizer.learning_rate = rate
        for step in range(3):
            chosen = [slice(sum(b[:step]), sum(b[: step + 1])) for b in BATCHES]
            x, y = (np.concatenate([part[i][s] for part, s in zip(parts, chosen, strict=False)]) for i in (0, 1))
            model.train_on_batch(x, y)
            found.append(model.get_weights())
    return found


def by_parts(name: str, first: list[np.ndarray]) -> list[list[np.ndarray]]:
    """One process whose batch normalisation sees one part of the union batch at a time: `weights of part 0`.

    A gradient is what plain SGD with rate 1 takes off the weights; then momentum by its formula.
    """
    parts = shards(name)
    models = [compiled(name, first, keras.optimizers.SGD(1.0)) for _ in parts]
    trainable = {id(variable) for variable in models[0].trainable_weights}
    learns = [id(variable) in trainable for variable in models[0].weights]
    weights, velocity = [array.copy() for array in first], [np.zeros_like(array) for array in first]
    found = []
    for rate in RATES:
        for step in range(3):
            samples = [batches[step] for batches in BATCHES[: len(parts)]]
            gradient = [np.zeros_like(array) for array in first]
            for model, batches, (x, y) in zip(models, BATCHES, parts, strict=False):
                own = [w if is_own else m for w, m, is_own in zip(weights, model.get_weights(), learns, strict=True)]
                model.set_weights(own)
                chosen = slice(sum(batches[:step]), sum(batches[: step + 1]))
                model.train_on_batch(x[chosen], y[chosen])
                share = batches[step] / sum(samples)
                for total, before, after in zip(gradient, own, model.get_weights(), strict=True):
                    np.add(total, share * (before - after), out=total)
            for i, is_learnt in enumerate(learns):
                velocity[i] = MOMENTUM * velocity[i] - rate * gradient[i]
                weights[i] = weights[i] + velocity[i] if is_learnt else models[0].get_weights()[i]
            found.append([array.copy() for array in weights])
    return found


def check_same(*arrays: np.ndarray) -> None:
    """Check that these have the same bits on all ranks."""
    for array in arrays:
        assert np.array_equal(array, hvd.broadcast(array, 0))


def check(found: list[list], expected: list[list], tolerance: float) -> None:
    assert len(found) == len(expected) == 6
    moved = max(np.abs(a - b).max() for a, b in zip(found[0], found[-1], strict=True))
    assert moved > 50 * tolerance, "the steps are larger than the tolerance"
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=tolerance, rtol=0, err_msg=f"step {step}")


def equals_one_process(name: str) -> None:
    first, found, _ = trained(name)
    check_same(*found[-1])
    if hvd.rank() == 0:
        check(found, alone(name, first), 2e-5)
        check(found, by_parts(name, first), 2e-5)


def equals_one_process_dense() -> None:
    equals_one_process("dense")


def equals_one_process_embedding() -> None:
    equals_one_process("embedding")


def batch_normalisation_sees_the_batch_of_its_rank() -> None:
    first, found, model = trained("batch_norm")
    learnt = [variable.path.split("/")[-1] not in ("moving_mean", "moving_variance") for variable in model.weights]
    for array, is_learnt in zip(found[-1], learnt, strict=True):
        assert np.array_equal(array, hvd.broadcast(array, 0)) == (is_learnt or hvd.rank() == 0)
    if hvd.rank() == 0:
        check(found, by_parts("batch_norm", first), 2e-5)


def gradients_of_16_bits_are_close() -> None:
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        first, found, _ = trained("embedding", compression)
        check_same(*found[-1])
        if hvd.rank() == 0:
            moved = max(np.abs(a - b).max() for a, b in zip(found[0], found[-1], strict=True))
            check(found, alone("embedding", first), moved / 51)


def a_saved_model_knows_nothing_of_us() -> None:
    _, _, model = trained("batch_norm")
    if hvd.rank() != 0:
        return
    for suffix in ("keras", "h5"):
        path = Path(f"model.{suffix}")
        model.save(path)
        text = zipfile.ZipFile(path).read("config.json") if suffix == "keras" else path.read_bytes()
        assert b"nnlo" not in text
        again = keras.models.load_model(path)
        assert json.dumps(again.optimizer.get_config()) == json.dumps(model.optimizer.get_config())
        assert type(again.optimizer.apply).__name__ == type(again.optimizer.stateless_apply).__name__ == "method"
        assert type(again.optimizer).__name__ == "SGD"
        for ours, theirs in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(ours.numpy() if hasattr(ours, "numpy") else ours, np.asarray(theirs))
        if suffix == "keras":  # Keras 3 forgets the variables of any optimizer in .h5
            again.fit(*shards("batch_norm")[0], verbose=0)


def warm_up_and_metrics() -> None:
    set_seed(0)
    size = hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * size, momentum=MOMENTUM))
    model = compiled("batch_norm", None, optimizer)
    x, y = shards("batch_norm")[hvd.rank()]
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))

    calls = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1 * size, warmup_epochs=2, verbose=1),
        Rates(),
    ]
    batch = BATCHES[hvd.rank()][0]
    history = model.fit(x, y, batch_size=batch, epochs=4, callbacks=calls, verbose=0).history
    expected = [0.1 + 0.1 * (size - 1) * min(1.0, step / 6) for step in range(12)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    check_same(np.array(history["loss"]), np.array(history["accuracy"]))


def mixed_precision() -> None:
    """Keras's own wrapper would decide on each rank by itself whether to skip a step, so it must be inside."""
    x, y = shards("batch_norm")[hvd.rank()]
    first = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled("batch_norm", None, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
        with pytest.raises(ConfigurationError, match="must be the outermost optimizer"):
            model.fit(x, y, callbacks=first, verbose=0)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**20)
        model = compiled("batch_norm", None, hvd.DistributedOptimizer(scaled))
        x = x * (1e4 if hvd.rank() == 0 else 1)  # gradients of one rank overflow
        model.fit(x[:9], y[:9], batch_size=3, epochs=4, callbacks=first, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    check_same(*map(keras.ops.convert_to_numpy, [*model.trainable_weights, *scaled.variables]))


def ranks_with_fewer_batches_join() -> None:
    set_seed(0)
    model = compiled("dense", None, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    x, y = shards("dense")[hvd.rank()]
    steps = 2 + hvd.rank()
    calls = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x[: 2 * steps], y[: 2 * steps], batch_size=2, callbacks=calls, verbose=0)
    assert hvd.join() == hvd.size() - 1


def shown(model: keras.Model) -> np.ndarray:
    """Weights and optimizer of a model, one number after the other."""
    variables = [*model.weights, *model.optimizer.variables]
    return np.concatenate([keras.ops.convert_to_numpy(variable).ravel() for variable in variables])


def a_model_without_input() -> None:
    """As in Horovod's `tensorflow2_keras_mnist.py`: on TensorFlow the first batch makes the weights."""
    set_seed(hvd.rank())
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    settings = {"backward_passes_per_step": 1, "average_aggregated_gradients": True, "device_dense": ""}
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=MOMENTUM), **settings)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    calls = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
        hvd.callbacks.LearningRateScheduleCallback(0.1, 0.1, start_epoch=2, end_epoch=3),
        hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 1 / epoch, start_epoch=3, staircase=False),
    ]
    x, y = shards("dense")[hvd.rank()]
    model.fit(x[:9], y[:9], batch_size=3, epochs=4, callbacks=calls, verbose=0)
    check_same(shown(model))
    rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
    np.testing.assert_allclose(rate, 0.1 / (3 + 2 / 3), rtol=1e-6)
    with pytest.raises(ConfigurationError, match=r"takes no `backward_passes_per_step` other than 1\.0\. Received: 2"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)


def a_rank_that_resumes() -> None:
    """Rank 0 has trained before: only its optimizer has velocities."""
    model = compiled("dense", None, keras.optimizers.SGD(0.1, momentum=MOMENTUM))
    x, y = shards("dense")[hvd.rank()]
    if hvd.rank() == 0:
        model.fit(x[:8], y[:8], verbose=0)
    hvd.DistributedOptimizer(model.optimizer)
    first = hvd.broadcast(shown(model).size, 0)
    model.fit(x[:8], y[:8], callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], verbose=0)
    assert shown(model).size == first
    check_same(shown(model))


def different_rates() -> None:
    """As by `ReduceLROnPlateau` on each rank's own loss: after the first epoch rank 1 has another learning rate."""
    set_seed(0)
    model = compiled("dense", None, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    x, y = shards("dense")[0]
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, _: 0.1 / (1 + epoch * hvd.rank()))
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, epochs=1, callbacks=[first, scheduler], verbose=0)
    sys.stdout.write(f"the first epoch is through on rank {hvd.rank()}\n")
    model.fit(x, y, epochs=2, callbacks=[first, scheduler], initial_epoch=1, verbose=0)


def different_models() -> None:
    """Equally many numbers, in other shapes."""
    x, n = np.zeros((8, 10)), 3 + 2 * hvd.rank()
    model = keras.Sequential([keras.Input((10 if n == 3 else 6,)), keras.layers.Dense(n, use_bias=False)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(x[:, : model.input_shape[1]], np.zeros((8, n)), verbose=0)


def a_tape() -> None:
    """Only on TensorFlow."""
    import tensorflow as tf

    weight = tf.Variable(np.full(3, hvd.rank() + 1.0, np.float32))
    tf.function(lambda: hvd.broadcast_variables([weight, keras.Variable(weight)], 0))()
    assert weight.numpy().tolist() == [1.0] * 3

    @tf.function
    def step(x: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        tape = hvd.DistributedGradientTape(tape, n_samples=hvd.rank() + 1)
        return tape.gradient(loss, [weight]), hvd.allreduce(loss, op=hvd.Max), hvd.allgather(x[: hvd.rank() + 1])

    x = tf.fill([3], float(hvd.rank()))
    (gradient,), greatest, rows = step(x)
    size = hvd.size()
    shares = np.arange(1, size + 1) / sum(range(size + 1))
    np.testing.assert_allclose(gradient, np.full(3, np.dot(shares, np.arange(size))), rtol=1e-6)
    assert greatest == 3.0 * (size - 1)
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([hvd.rank()]), tf.constant([size, 2]))
    assert (hvd.allreduce(slices, op=hvd.Sum).numpy() == 1).all()
    assert hvd.allreduce(tf.constant(0.5, tf.bfloat16)).dtype == tf.bfloat16
    assert rows.numpy().tolist() == [float(number) for number in range(size) for _ in range(number + 1)]


if __name__ == "__main__":
    hvd.init()
    for function in sys.argv[1:]:
        globals()[function]()
        print(f"{function} on rank {hvd.rank()}", flush=True)
