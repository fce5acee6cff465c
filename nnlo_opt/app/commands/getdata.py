"""`GetData`: writes MNIST, CIFAR-10, simulated data or the user's arrays as HDF5 files, with lists of these files.

GetData mnist --n-train-files 24 --n-test-files 4
GetData from-arrays X.npy Y.npy --name mine
"""

import argparse
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nnlo_opt.app.commands.arguments import Parser, whole_number
from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.kinds import PATH, SHARE, TEXT, whole
from nnlo_opt.app.run.options.table import SEED, Option
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.data.hdf5.source import write_hdf5
from nnlo_opt.engine.data.lists import sums_path, write_list, write_sums
from nnlo_opt.engine.data.sets.array_files import samples_from_arrays
from nnlo_opt.engine.data.sets.download import Progress, downloaded_images
from nnlo_opt.engine.data.sets.image_files import IMAGE_SHAPES, Images, ImageSet, bundled_digits, images_from_file
from nnlo_opt.engine.data.sets.showers import LARGEST, SMALLEST, shower_set
from nnlo_opt.engine.data.sets.simulated import SIMULATED, simulated

DEFAULT_N_FILES = (24, 4)
_FROM_ARRAYS, _SHOWERS = "from-arrays", "showers"
#: default number of simulated showers
_N_SHOWERS = 6000
#: first words of the command
DATA_SETS = (*sorted(IMAGE_SHAPES), *SIMULATED, _SHOWERS, "3d", _FROM_ARRAYS)


# fmt: off
#: options of `GetData`
OPTIONS = (
    Option("out", "FOLDER", PATH, shown="data/<name>", example="data/digits", help="folder to write to"),
    Option("source", "auto|keras|bundled|drawn|FILE", TEXT, default="auto", example="mnist.npz",
        help="keras: the file in KERAS_HOME, else its download; auto: keras, else the bundled digits; drawn: "
             "generated drawings in the format of CIFAR-10; FILE: a .npz file like Keras's mnist.npz, or "
             "cifar-10-binary.tar.gz"),
    Option("n_train_files", "N", whole(), shown=str(DEFAULT_N_FILES[0]), example="8",
        help="number of training files"),
    Option("n_test_files", "N", whole(), shown=str(DEFAULT_N_FILES[1]), example="2", help="number of test files"),
    replace(SEED, help="seed for shuffling the samples"),
    Option("n_samples", "N", whole(2), example="500",
        help="maximum number of samples in all files together; for showers, the number to simulate"),
    Option("cells", "N", whole(), shown=str(LARGEST), example="13",
        help=f"showers: number of cells along each axis, from {SMALLEST} to {LARGEST}"),
)
#: options of `GetData from-arrays`
FROM_ARRAYS_OPTIONS = (
    Option("name", "NAME", TEXT, "name of the data set, in the names of its files", "arrays", example="mine"),
    Option("split", "SHARE", SHARE, "fraction of the samples for validation, drawn by the seed", 0.2, example="0.1"),
    *(replace(option, default=1, shown="") for option in OPTIONS if "files" in option.name),
    *(option for option in OPTIONS if option.name in ("out", "seed", "n_samples")),
)
# fmt: on


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Write MNIST, CIFAR-10, simulated data (topclass, jets, showers) or your own arrays as HDF5 files of features and
    labels, with lists of the files.
    """
    if _FROM_ARRAYS in argv:
        of_arrays = Parser(FROM_ARRAYS_OPTIONS, prog=f"GetData {_FROM_ARRAYS}", description=from_arrays.__doc__)
        from_arrays(of_arrays, [word for word in argv if word != _FROM_ARRAYS])
        return
    name_help = "data set; 3d is showers; from-arrays X.npy Y.npy has its own --help"
    parser.add_argument("name", choices=DATA_SETS, help=name_help)
    parser.add_argument(
        "n_files", nargs="*", type=whole_number, help="numbers of training and test files, like the two options"
    )
    values = parser.values(argv, mixed=True)
    if len(values.n_files) > 2 or min(values.n_files, default=1) < 1:
        raise ConfigurationError(
            "`n_files` must be at most two numbers of files, to train and to test, each at least 1. Received: "
            f"{values.n_files}."
        )
    if values.cells is not None and values.name not in (_SHOWERS, "3d"):
        raise ConfigurationError(f"`--cells` is for showers only. Received: {values.name}. Leave `--cells` out.")
    numbers = (*values.n_files, *DEFAULT_N_FILES[len(values.n_files) :])
    values.out = Path(values.out or f"data/{values.name}")
    values.n_train_files = values.n_train_files or numbers[0]
    values.n_test_files = values.n_test_files or numbers[1]
    _make(values)


def from_arrays(parser: Parser, argv: Sequence[str]) -> None:
    """Write arrays as HDF5 files, with lists of the files."""
    parser.add_argument("features", metavar="X.npy", type=Path, help="features, one row for each sample")
    parser.add_argument("labels", metavar="Y.npy", type=Path, help="labels, one row for each sample")
    arguments = parser.values(argv)
    arguments.source = _FROM_ARRAYS
    arguments.out = Path(arguments.out or f"data/{arguments.name}")
    arguments.name = Path(arguments.name).name
    _make(arguments)


def _make(arguments: argparse.Namespace) -> None:
    """Write the files and their lists."""
    try:
        # Before anything is downloaded.
        arguments.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=arguments.out).close()
        images = _load(arguments)
        _say(f"Source: {images.source}")
        lists = _write(images, arguments)
    except OSError as error:
        raise ConfigurationError(
            "`--out` must be a folder that can be written to, with room for the files. Received: "
            f"{arguments.out} ({error.strerror or error}). Name another folder."
        ) from error
    print(
        f"Wrote {len(images.train):,} samples to train on and {len(images.test):,} to test with; their files are in "
        f"{' and '.join(map(str, lists))}"
    )


def _say(line: str) -> None:
    print(line, flush=True)  # also in a pipe


def _load(arguments: argparse.Namespace) -> ImageSet:
    """Return the requested images, shuffled."""
    images = _images_from(arguments).shuffled(arguments.seed)
    if arguments.n_samples is not None:
        images = images.first(arguments.n_samples)
    for part, n_files in ((images.train, arguments.n_train_files), (images.test, arguments.n_test_files)):
        if len(part) < n_files:
            raise ConfigurationError(
                f"Every file must have at least one sample. Received: {n_files} files for {len(part)} samples. "
                f"Ask for fewer files, or for more samples."
            )
    return images


def _images_from(arguments: argparse.Namespace) -> ImageSet:
    match arguments.source, arguments.name:
        case "from-arrays", _:
            return samples_from_arrays(arguments.features, arguments.labels, arguments.split, arguments.seed)
        case "auto", "showers" | "3d":
            return shower_set(arguments.n_samples or _N_SHOWERS, arguments.cells or LARGEST, arguments.seed)
        case source, "showers" | "3d":
            raise ConfigurationError(f"Showers are simulated. Received: `--source {source}`; leave it out.")
        case "auto", name if name in SIMULATED:
            return simulated(name, arguments.n_samples, arguments.seed)
        case "drawn", "cifar10":
            return simulated("drawn", arguments.n_samples, arguments.seed)
        case source, name if name in SIMULATED or source == "drawn":
            whose = "cifar10 only" if source == "drawn" else "images; this set is simulated"
            raise ConfigurationError(f"`--source {source}` is for {whose}. Received: {name}. Leave `--source` out.")
        case "bundled", "mnist":
            return bundled_digits(arguments.seed)
        case "bundled", name:
            raise ConfigurationError(
                f"`--source bundled` is for mnist only. Received: {name}. Use `--source keras` or a file."
            )
        case "auto", "mnist":
            try:
                return downloaded_images("mnist", _say)
            except ConfigurationError:
                digits = bundled_digits(arguments.seed)
                remark = "there was no download: `--source keras` says why"
                return replace(digits, source=f"{digits.source} ({remark})")
        case "auto" | "keras", name:
            return downloaded_images(name, _say)
        case path, name:
            return images_from_file(name, Path(path))


def _write(images: ImageSet, arguments: argparse.Namespace) -> list[Path]:
    """Write data files and lists; return the paths of the lists."""
    parts = {"train": (images.train, arguments.n_train_files), "test": (images.test, arguments.n_test_files)}
    lists: list[tuple[str, int | None, Path]]
    lists = [(part, None, arguments.out / f"{part}_{arguments.name}.list") for part in parts]
    if arguments.name == "3d":  # NNLO's documentation has lists of one file
        lists += [(part, 1, arguments.out / f"{part}_1_{arguments.name}.list") for part in parts]
    # If this is interrupted, no list may name files of two runs.
    for _, _, path in lists:
        path.unlink(missing_ok=True)
        sums_path(path).unlink(missing_ok=True)
    files = {
        part: _write_files(samples, arguments.out / f"{arguments.name}_{part}", n_files)
        for part, (samples, n_files) in parts.items()
    }
    for part, n_files, path in lists:
        write_sums(path, files[part][:n_files])
        write_list(path, files[part][:n_files])
    return [path for _, n_files, path in lists if n_files is None]


def _write_files(images: Images, stem: Path, n_files: int) -> list[Path]:
    """Write <stem>_0.h5 and so on, with sizes that differ by at most one; remove leftover files of an earlier run."""
    paths = [stem.with_name(f"{stem.name}_{number}.h5") for number in range(n_files)]
    n_bytes = len(images) * sum(part.nbytes for part in images[:1].datasets().values())
    _say(f"Writing {len(images):,} samples, {n_bytes / 1e6:,.0f} MB, to {counted(n_files, 'file')}: {paths[0]} ...")
    progress = Progress(_say, n_files, "files", 1)
    for path, chosen in zip(paths, np.array_split(np.arange(len(images)), n_files), strict=True):
        write_hdf5(path, images[chosen].datasets())
        progress.update(1)
    for path in stem.parent.glob(f"{stem.name}_*.h5"):
        if re.fullmatch(rf"{re.escape(stem.name)}_\d+\.h5", path.name) and path not in paths:
            path.unlink()
    return paths
