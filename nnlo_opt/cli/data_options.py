"""Where samples come from and how they are read: options, and what they make."""

import argparse
import os
from pathlib import Path

from nnlo_opt.cli.values import whole
from nnlo_opt.data.cache import parse_copy_command
from nnlo_opt.data.weights import parse_class_weights
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.options import DataOptions


def add_model_and_data(parser: argparse.ArgumentParser) -> None:
    """What is trained, and on what."""
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="file.py with get_model(**parameters) or objective(parameters, comm, report); "
        "a builtin name (mnist, cifar10); or an architecture arch.json of Keras 3",
    )
    group.add_argument("--train-data", metavar="LIST", help="text file with one HDF5 file of training samples a line")
    group.add_argument("--val-data", metavar="LIST", help="text file with one HDF5 file of validation samples a line")
    group.add_argument(
        "--features-name",
        metavar="NAME",
        help="data set of the features; a group, or names with commas between, for several inputs (default: features)",
    )
    group.add_argument("--labels-name", metavar="NAME", help="the same of the labels (default: labels)")
    group.add_argument(
        "--loss", metavar="NAME", help="Keras name (default: the module's get_loss, else inferred and announced)"
    )
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="what the model is made with: keras, or torch for a torch.nn.Module (default: as the model module tells)",
    )
    group.add_argument(
        "--keras-backend",
        metavar="NAME",
        help="what Keras computes with: tensorflow, jax or torch (default: KERAS_BACKEND, else tensorflow)",
    )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """The rest of the options of `data_options_of`."""
    group = parser.add_argument_group("reading and weighting samples")
    group.add_argument(
        "--class-weights",
        metavar="DICT",
        type=parse_class_weights,
        help='what a sample of a class counts in training, such as "{0: 1.0, 1: 5.0}", others 1; or balanced: every '
        "class as much as each other (default: every sample 1)",
    )
    group.add_argument(
        "--sample-weights-name",
        metavar="NAME",
        help="data set with what each sample counts in training (default: every sample 1)",
    )
    group.add_argument(
        "--memory-limit",
        metavar="MIB",
        type=whole(0, "MiB"),
        help="of samples that a rank holds in memory; more are read from the files in every pass, in the same order "
        "(default: a quarter of the node's free memory, divided among its ranks)",
    )
    group.add_argument(
        "--preload-data",
        metavar="N",
        type=whole(0),
        default=1,
        help="windows of 64 MiB read ahead by a thread, where samples are not held in memory (default: %(default)s)",
    )
    group.add_argument(
        "--verify-data",
        action="store_true",
        help="compare all data files with the SHA-256 in LIST.sha256 beside each list, which GetData writes, before "
        "anything trains",
    )
    group.add_argument(
        "--cache-data",
        metavar="DIR",
        help="folder, of the node, for copies of the files that its ranks read samples of; removed at the end "
        "(default: $DATA_CACHE, else files are read where they are)",
    )
    group.add_argument(
        "--copy-command",
        metavar="COMMAND",
        help="command without a shell that copies one file, such as 'scp {} {}' "
        "(default: $DATA_COPY_COMMAND, else they are copied by this process)",
    )


def data_options_of(arguments: argparse.Namespace) -> DataOptions:
    """What the options, and the environment where they are not given, ask for; ConfigurationError."""
    cache = arguments.cache_data or os.environ.get("DATA_CACHE")
    if arguments.copy_command is not None and not cache:
        raise ConfigurationError(
            "`--copy-command` copies to the folder of `--cache-data`. Received: the command without a folder; give "
            "both, or neither."
        )
    command = None
    if cache and (text := arguments.copy_command or os.environ.get("DATA_COPY_COMMAND")):
        command = parse_copy_command(text, "--copy-command" if arguments.copy_command else "DATA_COPY_COMMAND")
    return DataOptions(
        train_data=Path(arguments.train_data) if arguments.train_data else None,
        val_data=Path(arguments.val_data) if arguments.val_data else None,
        features_name=arguments.features_name,
        labels_name=arguments.labels_name,
        fold_by=getattr(arguments, "fold_by", "samples"),
        verify_data=arguments.verify_data,
        cache=Path(cache) if cache else None,
        copy_command=command,
        memory_bytes=None if arguments.memory_limit is None else arguments.memory_limit << 20,
        n_ahead=arguments.preload_data,
        class_weights=arguments.class_weights,
        sample_weights_name=arguments.sample_weights_name,
    )
