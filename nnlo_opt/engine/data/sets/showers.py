"""Simulated electron showers in a calorimeter, and figures that compare two sets of showers.

A shower of energy E (GeV) is drawn spot by spot. Lengths are in radiation lengths (X0) along the shower axis z and in
Moliere radii (R) across it.

- Depth t of a spot: the gamma profile dE/dt ~ (b t)^(a - 1) exp(-b t) with b = 0.5 and its maximum (a - 1) / b at
  ln(E / Ec) - 0.5, Ec = 8 MeV (Review of Particle Physics, "Passage of particles through matter", eqs. 34.36, 34.37).
  The maximum of each shower is shifted by a normal number of 0.4 X0.
- Distance r from the axis: dE/dr ~ p exp(-r / 0.25) / 0.25 + (1 - p) exp(-r / 0.9) / 0.9, a core with the fraction
  p = 0.85 - 0.015 t, at least 0.3, and a halo, both wider with depth by the factor 1 + 0.02 t. The axis is shifted by
  normal numbers of 0.1 R.
- Sum of the cells: with e = E / 100 it is e times a polynomial of degree 4 in e, the response assumed in NNLO's
  example, smeared by the resolution 15 % / sqrt(E) and 1 %, added in quadrature. Cells below 1e-4 are set to 0.

The calorimeter has the same size for any number of cells: 25 X0 deep and 7 R wide.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.data.sets.image_files import Images, ImageSet

#: sum of the cells over e = E / 100 GeV, a polynomial in e with its highest power first
RESPONSE = (0.0018, -0.023, 0.11, -0.28, 2.21)
#: range of e
ENERGIES = (0.1, 5.0)
#: minimum number of cells along an axis, and the number in NNLO's data
SMALLEST, LARGEST = 9, 25
_DEPTH, _WIDTH = 25.0, 7.0
_CRITICAL_GEV, _FALL = 0.008, 0.5
_N_SPOTS, _SPOTS_PER_GEV = 500, 10
_THRESHOLD = 1e-4


class Showers(Images):
    """Showers x (n, cells, cells, cells, 1) float32, axes x, y and z, and y (n,) float32, their e = E / 100 GeV."""

    def datasets(self) -> dict[str, np.ndarray]:
        """Return the data sets of a file: X, and the group y of flag a (1: real), energy b = e, sum of the cells c."""
        return {"X": self.x, "y/a": np.ones_like(self.y), "y/b": self.y, "y/c": totals(self.x)}


def expected_total(e: np.ndarray) -> np.ndarray:
    """Return the expected sum of the cells of showers with energies e = E / 100 GeV."""
    return np.polyval(RESPONSE, e) * e


def simulate(n_samples: int, n_cells: int, seed: int) -> Showers:
    """Return `n_samples` showers of energies uniform in `ENERGIES`, in `n_cells` cells along each axis."""
    if not SMALLEST <= n_cells <= LARGEST:
        raise ConfigurationError(
            f"`--cells` must be between {SMALLEST} and {LARGEST}. Received: {n_cells}. Leave it out for {LARGEST}."
        )
    rng = np.random.default_rng(seed)
    e = rng.uniform(*ENERGIES, n_samples)
    resolution = np.hypot(0.15 / np.sqrt(100 * e), 0.01)
    sums = expected_total(e) * (1 + resolution * rng.standard_normal(n_samples))
    x: np.ndarray = np.empty((n_samples, *[n_cells] * 3, 1), np.float32)
    for shower, energy, total in zip(x, e, sums, strict=True):
        shower[..., 0] = _shower(energy, total, n_cells, rng)
    x[x < _THRESHOLD] = 0
    return Showers(x, np.asarray(e, np.float32))


def shower_set(n_samples: int, n_cells: int, seed: int) -> ImageSet:
    """Return simulated showers, one sixth as test set."""
    showers = simulate(n_samples, n_cells, seed)
    n_test = max(1, n_samples // 6)
    source = f"a simulation of {n_samples:,} showers in {n_cells} x {n_cells} x {n_cells} cells"
    return ImageSet(showers[n_test:], showers[:n_test], source)


def _shower(e: float, total: float, n_cells: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cells of one shower whose spots sum to `total`, minus the leakage out of the calorimeter."""
    maximum = max(np.log(100 * e / _CRITICAL_GEV) - 0.5 + 0.4 * rng.standard_normal(), 1.0)
    n_spots = rng.poisson(_N_SPOTS + _SPOTS_PER_GEV * 100 * e)
    depth = rng.gamma(_FALL * maximum + 1, 1 / _FALL, n_spots)
    in_core = rng.random(n_spots) < np.maximum(0.85 - 0.015 * depth, 0.3)
    radius = rng.exponential(np.where(in_core, 0.25, 0.9) * (1 + 0.02 * depth))
    angle = rng.uniform(0, 2 * np.pi, n_spots)
    centre = 0.1 * rng.standard_normal(2)
    x, y = radius * np.cos(angle) + centre[0], radius * np.sin(angle) + centre[1]
    places = np.stack([x / _WIDTH + 0.5, y / _WIDTH + 0.5, depth / _DEPTH])
    inside = np.all((places >= 0) & (places < 1), axis=0)
    cells = np.ravel_multi_index(tuple((places[:, inside] * n_cells).astype(int)), [n_cells] * 3)
    return np.bincount(cells, minlength=n_cells**3).reshape([n_cells] * 3) * (total / n_spots)


# ---------------------------------------------------------------- figures


def totals(x: np.ndarray) -> NDArray[np.float32]:
    """Return the sum of the cells of each shower, (n,) float32."""
    return x.sum(axis=(1, 2, 3, 4), dtype=np.float64).astype(np.float32)


def profiles(x: np.ndarray) -> list[np.ndarray]:
    """Return the mean sums of the cells along x, y and z, (cells,) each."""
    mean = x[..., 0].mean(axis=0, dtype=np.float64)
    return [mean.sum(axis=tuple(other for other in range(3) if other != axis)) for axis in range(3)]


def moments(x: np.ndarray) -> dict[str, float]:
    """Return the mean over the showers of the first moment (cells) and of the width (cells) along each axis."""
    found = dict[str, float]()
    place = np.arange(x.shape[1])
    for axis, name in enumerate("xyz"):
        sums = x[..., 0].sum(axis=tuple(1 + other for other in range(3) if other != axis), dtype=np.float64)
        sums = sums[sums.sum(axis=1) > 0]
        shares = sums / sums.sum(axis=1, keepdims=True)
        first = shares @ place
        width = np.sqrt(np.maximum(shares @ place**2 - first**2, 0))
        found |= {f"{name}1": float(first.mean()), f"{name}2": float(width.mean())} if len(sums) else {}
    return found


def distance(generated: np.ndarray, simulated: np.ndarray) -> dict[str, float]:
    """Return the mean relative errors of the moments and of the profiles of `generated` showers.

    The error of a profile is the sum of the absolute differences of its cells over the sum of its cells. Without any
    energy every error is 1.
    """
    known, found = moments(simulated), moments(generated)
    of_moments = [abs(found[name] - value) / value if name in found else 1.0 for name, value in known.items()]
    pairs = zip(profiles(generated), profiles(simulated), strict=True)
    of_profiles = [float(np.abs(one - other).sum() / other.sum()) for one, other in pairs]
    return {"moments": float(np.mean(of_moments)), "profiles": float(np.mean(of_profiles))}


def physics_figure(
    generated: np.ndarray, simulated: np.ndarray, e: np.ndarray, edges: Sequence[float] = (0.1, 1, 2, 3, 4, 5)
) -> dict[str, float]:
    """Return the mean `distance` over the energy ranges between `edges`; both sets have the same energies `e`.

    If no shower is in these ranges, all showers form one range.
    """
    parts = [chosen for low, high in pairwise(edges) if (chosen := (e >= low) & (e <= high)).any()] or [e <= np.inf]
    each = [distance(generated[chosen], simulated[chosen]) for chosen in parts]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}
