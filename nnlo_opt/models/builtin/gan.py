"""Generative adversarial network of calorimeter showers, with data from `GetData showers`.

A generator makes showers of a wanted energy from noise. A discriminator tells them from simulated ones, and estimates
their energy and the sum of their cells. Both are trained together on each worker, as in NNLO's example (3DGAN, F.
Carminati et al., "Calorimetry with deep learning", NeurIPS 2017 workshop "Deep Learning for Physical Sciences"), which
is also where losses and energies come from. The networks are smaller: a generated shower is a share of the energy in
each cell, which sums to 1, times a sum; the discriminator also looks at the profiles.
"""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.data.sets.showers import ENERGIES, expected_total, physics_figure
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.composite import CompositeModel, Figures, ModelPart, PartTrainer
from nnlo_opt.models.data_files import find_lists
from nnlo_opt.space import Categorical, Integer, Real

#: share of the labels of the classification that are inverted
BIT_FLIP = 0.05
DISCRIMINATOR, COMBINED = "discriminator_model", "combined_model"


def get_model(
    latent_size: int = 200,
    discr_drop_out: float = 0.2,
    gen_weight: float = 2.0,
    aux_weight: float = 0.1,
    ecal_weight: float = 0.1,
    **more: Any,
) -> "ShowerGan":
    """Return a GAN for showers of the size of the data; `more` are further arguments of `ShowerGan`."""
    weights = {"classification": gen_weight, "energy": aux_weight, "sum_cell": ecal_weight}
    return ShowerGan(latent_size, discr_drop_out, weights, **more)


get_model.trains_itself = True  # type: ignore[attr-defined]
parameter_range = [
    Integer(50, 400, name="latent_size"),
    Real(0.0, 0.9, name="discr_drop_out"),
    Categorical([1, 2, 5, 6, 8], name="gen_weight"),
    Categorical([0.1, 0.2, 1, 2, 10], name="aux_weight"),
    Categorical([0.1, 0.2, 1, 2, 10], name="ecal_weight"),
]

get_train, get_val = find_lists("showers", "3d")


def get_features() -> str:
    """Return the name of the showers (n, cells, cells, cells, 1)."""
    return "X"


def get_labels() -> str:
    """Return the name of the group of flag, energy / 100 GeV and sum of the cells."""
    return "y"


class ShowerGan(CompositeModel):
    """Discriminator, and generator combined with a copy of the discriminator.

    Args:
        latent_size: length of the noise.
        drop_out: share of units that the discriminator drops.
        loss_weights: weights of the losses `classification`, `energy` and `sum_cell`.
        one_pass: True to train each model once a batch, the discriminator on simulated and generated showers mixed and
            the generator on twice the batch; else each model twice. None: $GANONEPASS.
        reverse: True to train the generator before the discriminator. None: $GANREVERSED.
        keep_generator_every: batches after which a worker writes the generator to a file; 0: never. None:
            $GANCHECKPOINT.
        keep_generator_in: folder of these files. None: $GANCHECKPOINTLOC, else the working folder.
    """

    def __init__(  # noqa: PLR0913  (settings by keyword)
        self,
        latent_size: int,
        drop_out: float,
        loss_weights: Mapping[str, float],
        *,
        one_pass: bool | None = None,
        reverse: bool | None = None,
        keep_generator_every: int | None = None,
        keep_generator_in: str | None = None,
    ) -> None:
        def asked(name: str) -> int:
            text = os.environ.get(name) or "0"
            if not text.isdecimal():
                raise ConfigurationError(f"`{name}` must be a whole number. Received: {text!r}. Unset it for 0.")
            return int(text)

        self._latent_size, self._drop_out = latent_size, drop_out
        self._loss_weights = loss_weights
        self._one_pass = bool(asked("GANONEPASS")) if one_pass is None else one_pass
        self._reverse = bool(asked("GANREVERSED")) if reverse is None else reverse
        self._keep_every = asked("GANCHECKPOINT") if keep_generator_every is None else keep_generator_every
        self._keep_in = Path(keep_generator_in or os.environ.get("GANCHECKPOINTLOC") or ".")
        self._n_batches = 0
        #: Keras model from noise to showers; None before `build`
        self.generator: Any = None

    def build(self, feature_shape: Any) -> Mapping[str, ModelPart]:
        import keras

        if not isinstance(feature_shape, tuple) or len(feature_shape) != 4 or len({*feature_shape[:3]}) > 1:
            raise ConfigurationError(
                f"The GAN takes showers of shape (cells, cells, cells, 1). Received: {feature_shape}. Make them by "
                "`GetData showers`, and name them X."
            )
        discriminator = build_discriminator(feature_shape[0], self._drop_out)
        self.generator = build_generator(feature_shape[0], self._latent_size)
        fixed = keras.models.clone_model(discriminator)
        fixed.name = "fixed_discriminator"
        fixed.trainable = False
        noise = keras.Input((self._latent_size,), name="noise")
        combined = keras.Model(noise, fixed(self.generator(noise)), name=COMBINED)
        losses = {"classification": "binary_crossentropy"}
        losses |= dict.fromkeys(("energy", "sum_cell"), "mean_absolute_percentage_error")
        part = partial(ModelPart, losses=losses, loss_weights=self._loss_weights)
        return {
            DISCRIMINATOR: part(model=discriminator),
            COMBINED: part(model=combined, copies=[(fixed, discriminator)]),
        }

    def train_on_batch(
        self, models: Mapping[str, PartTrainer], x: Any, y: Any, rng: np.random.Generator
    ) -> Mapping[str, Figures]:
        if not isinstance(y, list | tuple) or len(y) != 3:
            found = f"a group of {len(y)}" if isinstance(y, list | tuple) else "one data set"
            raise ConfigurationError(
                "The GAN takes labels in a group of three data sets: flag, energy / 100 GeV, sum of the cells. "
                f"Received: {found}. Make them by `GetData showers`, and name them y."
            )
        turns = {DISCRIMINATOR: self._train_discriminator, COMBINED: self._train_generator}
        names = reversed(turns) if self._reverse else turns
        figures = {name: turns[name](models, x, y, rng) for name in names}
        self._n_batches += 1
        if self._keep_every and self._n_batches % self._keep_every == 0:
            models[COMBINED].synced_model()
            self._keep_in.mkdir(parents=True, exist_ok=True)
            name = f"mpi_generator_{socket.gethostname()}_{os.getpid()}.weights.h5"
            self.generator.save_weights(self._keep_in / name)
        return figures

    def test_on_batch(
        self, models: Mapping[str, PartTrainer], x: Any, y: Any, rng: np.random.Generator
    ) -> Mapping[str, Figures]:
        discriminator, combined = models[DISCRIMINATOR], models[COMBINED]
        fake, wanted = self._fakes(models, len(x), rng)
        noise, energies = self._noise(2 * len(x), rng)
        return {
            DISCRIMINATOR: _mean([discriminator.test_on_batch(x, _flagged(1, y[1:])),
                                  discriminator.test_on_batch(fake, _flagged(0, wanted))]),
            COMBINED: combined.test_on_batch(noise, _flagged(1, energies)),
        }  # fmt: skip

    def generate(self, e: np.ndarray, seed: int = 0) -> np.ndarray:
        """Return showers of the energies e = E / 100 GeV (n,), by the weights of `generator`."""
        noise = np.random.default_rng(seed).standard_normal((len(e), self._latent_size))
        return np.asarray(self.generator.predict((noise * e[:, None]).astype(np.float32), verbose=0))

    # ------------------------------------------------------------ parts of a batch

    def _train_discriminator(
        self, models: Mapping[str, PartTrainer], x: Any, y: Any, rng: np.random.Generator
    ) -> Figures:
        discriminator = models[DISCRIMINATOR]
        fake, wanted = self._fakes(models, len(x), rng)
        real_labels, fake_labels = _flagged(1, y[1:], rng), _flagged(0, wanted, rng)
        if not self._one_pass:
            figures = discriminator.train_on_batch(x, real_labels), discriminator.train_on_batch(fake, fake_labels)
            return _mean(figures)
        order = rng.permutation(2 * len(x))
        labels = [np.concatenate(pair)[order] for pair in zip(real_labels, fake_labels, strict=True)]
        return discriminator.train_on_batch(np.concatenate([x, fake])[order], labels)

    def _train_generator(self, models: Mapping[str, PartTrainer], x: Any, y: Any, rng: np.random.Generator) -> Figures:
        noise, wanted = self._noise(2 * len(x), rng)
        labels, combined = _flagged(1, wanted), models[COMBINED]
        if self._one_pass:
            return combined.train_on_batch(noise, labels)
        halves = (slice(len(x)), slice(len(x), None))
        return _mean([combined.train_on_batch(noise[h], [label[h] for label in labels]) for h in halves])

    def _noise(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return noise for `n` showers, normal numbers times e, with the energies e and the sums of their cells."""
        e = rng.uniform(*ENERGIES, n).astype(np.float32)
        noise = rng.standard_normal((n, self._latent_size), np.float32) * e[:, None]
        return noise, [e, expected_total(e).astype(np.float32)]

    def _fakes(
        self, models: Mapping[str, PartTrainer], n: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return `n` generated showers with their wanted energies and sums."""
        noise, wanted = self._noise(n, rng)
        return models[COMBINED].predict(noise, self.generator)[0], wanted


def figure_of_merit(fold: Mapping[str, Any], model: ShowerGan, batches: Iterable[tuple[Any, Any]]) -> float:
    """Return the mean relative error of moments and profiles of generated showers against the validation samples."""
    pairs = [(x, y[1]) for x, y in batches]
    x, e = (np.concatenate(part) for part in zip(*pairs, strict=True))
    errors = physics_figure(model.generate(e), x, e)
    return (errors["moments"] + errors["profiles"]) / 2


def build_generator(n_cells: int, latent_size: int) -> Any:
    """Return the generator: shares of the energy by upsampled convolutions, times a sum."""
    import keras
    from keras import layers, ops

    noise = keras.Input((latent_size,), name="noise")
    n_coarse = -(-n_cells // 4)
    surplus = 4 * n_coarse - n_cells
    # The length of the noise is the energy e, up to a few percent; its direction is the rest.
    length = ops.sqrt(ops.mean(ops.square(noise), axis=1, keepdims=True)) + 1e-6
    h = layers.LeakyReLU()(layers.Dense(64)(layers.concatenate([noise / length, length])))
    image = layers.LeakyReLU()(layers.Dense(8 * n_coarse**3)(h))
    image = layers.UpSampling3D()(layers.Reshape((n_coarse,) * 3 + (8,))(image))
    image = layers.LeakyReLU()(layers.Conv3D(8, 3, padding="same")(image))
    image = layers.Cropping3D(((surplus // 2, surplus - surplus // 2),) * 3)(layers.UpSampling3D()(image))
    image = layers.LeakyReLU()(layers.Conv3D(6, 3, padding="same")(image))
    # A bias for each cell lets the mean shower be learned at once.
    shape = (n_cells,) * 3 + (1,)
    image = layers.EinsumDense("bxyzc,cd->bxyzd", output_shape=shape, bias_axes="xyzd")(image)
    shares = layers.Reshape(shape)(layers.Softmax()(layers.Flatten()(image)))
    total = length * layers.Dense(1, activation="softplus")(layers.LeakyReLU()(layers.Dense(16)(length)))
    return keras.Model(noise, shares * layers.Reshape((1, 1, 1, 1))(total), name="generator")


def build_discriminator(n_cells: int, drop_out: float) -> Any:
    """Return the discriminator: strided convolutions of the shower, beside dense layers on its profiles."""
    import keras
    from keras import layers, ops

    shower = keras.Input((n_cells,) * 3 + (1,), name="shower")
    total = ops.sum(shower, axis=(1, 2, 3))
    h = ops.log1p(shower * 50.0)
    for filters in (8, 16):
        h = layers.LeakyReLU()(layers.Conv3D(filters, 3, strides=2, padding="same")(h))
        h = layers.Dropout(drop_out)(h)
    h = layers.LeakyReLU()(layers.Dense(32)(layers.Flatten()(h)))
    sums = [layers.Flatten()(ops.sum(shower, axis=axes)) for axes in ((2, 3, 4), (1, 3, 4), (1, 2, 4))]
    along = layers.concatenate(sums) / (total + 1e-3)
    along = layers.LeakyReLU()(layers.Dense(32)(layers.concatenate([along * 10.0, ops.log(total + 1e-3)])))
    along = layers.Dropout(drop_out)(layers.LeakyReLU()(layers.Dense(32)(along)))
    h = layers.concatenate([h, along])
    outputs = [
        layers.Dense(1, activation="sigmoid", name="classification")(h),
        layers.Dense(1, name="energy")(layers.concatenate([h, total])),
        layers.Activation("linear", name="sum_cell")(total),
    ]
    return keras.Model(shower, outputs, name=DISCRIMINATOR)


def _flagged(flag: float, rest: list[np.ndarray], rng: np.random.Generator | None = None) -> list[np.ndarray]:
    """Return labels with the flag (1: real) before energies and sums; `rng` inverts the share `BIT_FLIP` of flags."""
    flags = np.full(len(rest[0]), flag, np.float32)
    if rng is not None:
        inverted = rng.random(len(flags)) < BIT_FLIP
        flags[inverted] = 1 - flags[inverted]
    return [flags, *rest]


def _mean(figures: Sequence[Figures]) -> dict[str, float]:
    return {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
