"""Simulated substitutes for the data sets that examples of NNLO or mpi_learn read.

The originals are private, or need a download. Every set is drawn from a few formulas, so that a model has something to
learn; do not publish physics from them.

topclass    images (n, 150, 94, 5) of collisions with two jets, a W boson, or two top quarks: three classes
jets        constituents (n, 150, 16) of jets of gluons, light quarks, W bosons, Z bosons, top quarks: five classes
drawn       drawings (n, 32, 32, 3) of five shapes, filled or not: ten classes, as many as CIFAR-10 has
"""

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.data.sets.array_files import ArraySamples
from nnlo_opt.engine.data.sets.image_files import Images, ImageSet

#: default number of samples of each set
N_SAMPLES = {"topclass": 600, "jets": 6000, "drawn": 6000}
#: sets that users request by name; "drawn" is a source of cifar10
SIMULATED = ("jets", "topclass")
#: fraction of the samples in the test set
_TEST_SHARE = 0.2
_N_PARTICLES = 150

#: for each class of jets: mass in GeV, prongs, mean number of constituents, width of a prong
_MASS = np.array([0.0, 0.0, 80.4, 91.2, 173.0])
_N_PRONGS = np.array([1, 1, 2, 2, 3])
_N_CONSTITUENTS = np.array([56, 34, 40, 40, 52])
_WIDTH = np.array([0.09, 0.05, 0.03, 0.03, 0.035])


def simulated(name: str, n_samples: int | None, seed: int) -> ImageSet:
    """Return a set of `n_samples`, by default `N_SAMPLES`, drawn from `seed`.

    Raises:
        ConfigurationError: `n_samples` is less than two.
    """
    n = N_SAMPLES[name] if n_samples is None else n_samples
    if n < 2:
        raise ConfigurationError(f"`--n-samples` must be at least 2. Received: {n}.")
    samples = _MAKERS[name](n, np.random.default_rng(seed))
    n_test = max(1, round(n * _TEST_SHARE))
    return ImageSet(samples[n_test:], samples[:n_test], f"a simulation ({name}, seed {seed})")


# ---------------------------------------------------------------- jets


def _jets(n: int, rng: np.random.Generator) -> Images:
    """Return constituents with the 16 features of the JEDI-net data set, hardest first, padded with zeros.

    px, py, pz, e, e/E, pt, pt/PT, eta, eta relative to the jet, rotated eta, phi, relative, rotated phi, distance to
    the axis, cosine of the angle to the beam, and the same relative to the axis. Labels: pt, eta, mass, number of
    constituents of the jet, one number for each class, and one that is always 0.
    """
    kind = rng.integers(5, size=n)
    jet_pt, jet_eta, jet_phi = rng.normal(1000, 40, n), rng.normal(0, 0.7, n), rng.uniform(-np.pi, np.pi, n)
    count = np.clip(rng.poisson(_N_CONSTITUENTS[kind]), 4, _N_PARTICLES)
    exists = np.arange(_N_PARTICLES) < count[:, None]
    centres, shares = _prongs(kind, jet_pt, rng)
    prong = (rng.random((n, _N_PARTICLES))[:, :, None] > np.cumsum(shares, 1)[:, None, :-1]).sum(2)
    offsets = np.take_along_axis(centres, prong[:, :, None], 1)
    offsets = offsets + _WIDTH[kind][:, None, None] * rng.standard_normal((n, _N_PARTICLES, 2))
    fraction = np.where(exists, rng.exponential(size=exists.shape) ** 1.5, 0)
    fraction = fraction / fraction.sum(1, keepdims=True)
    order = np.argsort(-fraction, axis=1)
    fraction, offsets = np.take_along_axis(fraction, order, 1), np.take_along_axis(offsets, order[:, :, None], 1)
    d_eta, d_phi = offsets[..., 0], offsets[..., 1]
    pt, eta, phi = fraction * jet_pt[:, None], jet_eta[:, None] + d_eta, jet_phi[:, None] + d_phi
    energy, theta = pt * np.cosh(eta), 2 * np.arctan(np.exp(-eta))
    turn = np.arctan2((d_phi * fraction).sum(1), (d_eta * fraction).sum(1))[:, None]
    features = np.stack(
        [
            *(pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), energy, energy / energy.sum(1, keepdims=True)),
            *(pt, fraction, eta, d_eta, d_eta * np.cos(turn) + d_phi * np.sin(turn)),
            *(phi, d_phi, d_phi * np.cos(turn) - d_eta * np.sin(turn), np.hypot(d_eta, d_phi)),
            *(np.cos(theta), np.cos(theta - 2 * np.arctan(np.exp(-jet_eta))[:, None])),
        ],
        axis=2,
    )
    features = np.where(exists[:, :, None], features, 0).astype(np.float32)
    known = np.stack([jet_pt, jet_eta, _MASS[kind], count], 1)
    labels: np.ndarray = np.concatenate([known, np.eye(6)[kind]], 1).astype(np.float32)
    return ArraySamples(features, labels, ("jetConstituentList", "jets"))


def _prongs(kind: np.ndarray, pt: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres (n, 3, 2) of the prongs of each jet around its axis, and their fractions (n, 3) of its pt."""
    n = len(kind)
    z, angle = rng.uniform(0.25, 0.75, n), rng.uniform(0, 2 * np.pi, n)
    distance = _MASS[kind] * rng.normal(1, 0.04, n) / (pt * np.sqrt(z * (1 - z)))
    way = np.stack([np.cos(angle), np.sin(angle)], 1)
    first, second = way * (distance * (1 - z))[:, None], -way * (distance * z)[:, None]
    across = np.stack([-way[:, 1], way[:, 0]], 1) * (0.6 * distance)[:, None]
    shares = np.stack([z, 1 - z, np.zeros(n)], 1)
    is_top = _N_PRONGS[kind] == 3
    shares[is_top] = np.stack([z, (1 - z) / 2, (1 - z) / 2], 1)[is_top]
    second[is_top] += across[is_top]
    third = np.where(is_top[:, None], -way * (distance * z)[:, None] - across, 0)
    return np.stack([first, second, third], 1), shares


# ---------------------------------------------------------------- images of collisions


def _collisions(n: int, rng: np.random.Generator) -> Images:
    """Return images of tracks, photons, neutral hadrons, leptons, missing energy in cells of eta and phi."""
    kind = rng.integers(3, size=n)
    images: np.ndarray = np.zeros((n, 150, 94, 5), np.float32)
    for event, image in zip(kind, images, strict=True):
        for _ in range((2, 1, 4)[event] + rng.poisson(0.7)):
            place, n_hits = rng.uniform([20, 0], [130, 94]), rng.poisson(40)
            cells = np.rint(rng.normal(place, 3.0, (n_hits, 2))).astype(int)
            hits = np.clip(cells[:, 0], 0, 149), cells[:, 1] % 94, rng.integers(3, size=n_hits)
            np.add.at(image, hits, rng.exponential(1.0, n_hits))
        if event:
            eta, phi = rng.integers(20, 130), rng.integers(94)
            image[eta - 1 : eta + 2, phi, 3] = 5.0
            image[:, rng.integers(94), 4] = rng.exponential(0.3) + 0.2
    labels: np.ndarray = np.eye(3, dtype=np.float32)[kind]
    return ArraySamples(images, labels, ("Images", "Labels"))


# ---------------------------------------------------------------- drawings


def _drawings(n: int, rng: np.random.Generator) -> Images:
    """Return drawings of a circle, square, diamond, cross or triangle in a random colour on a noisy background."""
    kind = rng.integers(10, size=n)
    y, x = (axis - 15.5 for axis in np.mgrid[:32, :32].astype(np.float32))
    place, size = rng.uniform(-6, 6, (2, n, 1, 1)), rng.uniform(6, 10, (n, 1, 1))
    x, y = x - place[0], y - place[1]
    # Circle, square, diamond, cross and triangle.
    square, diamond = np.maximum(np.abs(x), np.abs(y)), np.abs(x) + np.abs(y)
    cross = np.where(np.minimum(np.abs(x), np.abs(y)) < 2.0, square, 99)
    distances = [np.hypot(x, y), square, diamond, cross, np.maximum(2 * np.abs(x) + y, -2 * y) / 1.5]
    distance = np.select([kind[:, None, None] % 5 == shape for shape in range(5)], distances)
    is_filled = (kind >= 5)[:, None, None]
    shape = (distance < size) & (is_filled | (distance > size - 2.5))
    ground, ink = rng.uniform(0, 110, (n, 1, 1, 3)), rng.uniform(130, 255, (n, 1, 1, 3))
    pixels = np.where(shape[..., None], ink, ground) + rng.normal(0, 20, (n, 32, 32, 3))
    return Images(np.clip(pixels, 0, 255).astype(np.uint8), kind.astype(np.uint8))


_MAKERS = {"topclass": _collisions, "jets": _jets, "drawn": _drawings}
