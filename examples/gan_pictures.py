"""Pictures of generated against simulated showers, for a model that a training or a search has saved.

GetData showers --cells 13
mpirun -np 3 MPIGDriver --mode easgd --epochs 8 --batch 50 --checkpoint gan
python examples/gan_pictures.py checkpoints/gan/best_model.keras data/showers/test_showers.list showers.png

It prints the relative errors of the moments and of the profiles, and needs matplotlib.
"""

import sys
from pathlib import Path

import h5py
import keras
import matplotlib as mpl
import numpy as np

from nnlo_opt.engine.data.sets.showers import physics_figure, profiles, totals

mpl.use("Agg")
import matplotlib.pyplot as plt

N_SHOWN = 4


def simulated(list_file):
    """Return the showers X and energies e of all files of a list."""
    folder = Path(list_file).parent
    parts = []
    for name in Path(list_file).read_text().split():
        with h5py.File(folder / name) as file:
            parts.append((file["X"][:], file["y/b"][:]))
    return (np.concatenate(part) for part in zip(*parts, strict=True))


def generated(model_file, e, seed=0):
    """Return showers of the energies e, from the generator of a saved model."""
    generator = keras.models.load_model(model_file).get_layer("combined_model").get_layer("generator")
    noise = np.random.default_rng(seed).standard_normal((len(e), generator.input_shape[-1]))
    return generator.predict((noise * e[:, None]).astype(np.float32), verbose=0)


def draw(sets, e, path):
    """Draw showers of four energies seen from the side, mean profiles, and sums of the cells over e."""
    figure, axes = plt.subplots(3, N_SHOWN, figsize=(13, 9.5), layout="constrained")
    shown = [int(np.argmin(np.abs(e - wanted))) for wanted in (0.3, 1, 2.5, 4.5)]
    top = max(x[shown].sum(axis=1).max() for x in sets.values())
    for row, (name, x) in zip(axes, sets.items(), strict=False):
        for ax, number in zip(row, shown, strict=True):
            side = x[number, ..., 0].sum(axis=0)
            image = ax.imshow(np.log10(side + 1e-4), origin="lower", vmin=-3, vmax=np.log10(top), cmap="inferno")
            ax.set(title=f"{name}, {100 * e[number]:.0f} GeV", xlabel="z, depth (cells)", ylabel="y (cells)")
    figure.colorbar(image, ax=axes[:2], label="log10 of the energy in x")
    for ax, along in zip(axes[2], range(3), strict=False):
        for name, x in sets.items():
            ax.step(np.arange(x.shape[1]), profiles(x)[along], where="mid", label=name)
        ax.set(xlabel=f"{'xyz'[along]} (cells)", ylabel="mean energy", yscale="log" if along < 2 else "linear")
        ax.legend()
    for name, x in sets.items():
        axes[2, 3].plot(e, totals(x), ".", markersize=2, label=name)
    axes[2, 3].set(xlabel="E / 100 GeV", ylabel="sum of the cells")
    axes[2, 3].legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    model_file, list_file, picture = sys.argv[1:]
    x, e = simulated(list_file)
    sets = {"simulated": x, "generated": generated(model_file, e)}
    for name, error in physics_figure(sets["generated"], x, e).items():
        print(f"relative error of the {name}: {error:.3f}")
    draw(sets, e, picture)
