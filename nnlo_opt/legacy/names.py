"""Import hook for scripts of NNLO or mpi_learn, whose modules it makes of this package.

`install` puts one finder in front of all others. The finder answers for the modules of `MODULES`, a table of names for
each; for former modules of Keras, which are aliases; and it adds former names to Keras and torch when these are
imported. It imports none of them by itself.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from nnlo_opt.errors import EXIT_WRONG_REQUEST, NnloError

#: packages whose modules have these paths
_ROOTS = ("nnlo", "mpi_learn")
_CLASSES = "nnlo_opt.legacy.classes"
_OF_MODELS = ("MPIModel", "MPITModel", "ModelFromJson", "ModelFromJsonTF", "ModelTensorFlow", "ModelPytorch")
_OF_UTILS = ("import_keras", "load_model", "weights_from_shapes", "shapes_from_weights", "get_device_name")
_UTILS = dict.fromkeys(_OF_UTILS, _CLASSES)
_LOGGER = dict.fromkeys(("initialize_logger", "set_logging_prefix", "get_log_level"), _CLASSES)
_GAN = dict.fromkeys(("GANModel", "GANModelBuilder", "GANBuilder"), _CLASSES)
_TIMELINE = {"Timeline": _CLASSES}
# fmt: off
#: path below nnlo and mpi_learn -> its names -> module of ours that has them
_PATHS: Mapping[str, Mapping[str, str]] = {
    "": {}, "mpi": {}, "mpi.manager": {"MPIManager": _CLASSES, "MPIKFoldManager": "nnlo_opt", "get_device": _CLASSES},
    "train": {}, "train.algo": {"Algo": _CLASSES}, "train.data": {"Data": _CLASSES, "H5Data": _CLASSES},
    "train.model": {"ModelBuilder": "nnlo_opt", **dict.fromkeys(_OF_MODELS, _CLASSES)}, "train.GanModel": _GAN,
    "train.optimizer": {"OptimizerBuilder": _CLASSES}, "train.monitor": {"Monitor": _CLASSES},
    "train.timeline": _TIMELINE, "util": {}, "util.utils": _UTILS, "util.timeline": _TIMELINE, "util.logger": _LOGGER,
    "utils": _UTILS, "logger": _LOGGER,
}
# fmt: on
_MODELS = ("example", "mnist", "cifar10", "topclass", "mnist_torch", "topclass_torch")
_MAKERS = dict.fromkeys(("model_function", "make_model", *(f"make_{name}_model" for name in _MODELS)), _CLASSES)
_TORCH = {"MNistNet": _CLASSES, "CNN": _CLASSES}
#: module of NNLO or mpi_learn -> its names -> module of ours that has them
MODULES: dict[str, Mapping[str, str]] = {
    **{f"{root}.{path}".rstrip("."): names for root in _ROOTS for path, names in _PATHS.items()},
    **{f"{prefix}models": {} for prefix in ("", "nnlo.")},
    **{f"{prefix}models.Models": _MAKERS for prefix in ("", "nnlo.")},
    **{f"{prefix}models.TorchModels": _TORCH for prefix in ("", "nnlo.")},
    **{
        f"nnlo.models.model_{name}": {f"make_{name.removesuffix('_tf')}_model": _CLASSES}
        for name in ("example_tf", "mnist_tf", "cifar10_tf", "topclass_tf", "mnist_torch", "topclass_torch")
    },
}

# ---------------------------------------------------------------- former names of Keras and torch

_LAYERS = "core convolutional pooling recurrent normalization advanced_activations embeddings wrappers noise local"
#: former module -> its module of today
ALIASES: Mapping[str, str] = {
    **{f"keras.layers.{name}": "keras.layers" for name in (*_LAYERS.split(), "merge")},
    **dict.fromkeys(("keras.engine", "keras.engine.topology", "keras.engine.training"), "keras.layers"),
    "keras.objectives": "keras.losses",
    **{f"keras.utils.{name}_utils": "keras.utils" for name in ("np", "generic", "vis")},
}
# fmt: off
#: former argument -> today's, which is taken if a function has it and has no argument of the former name
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "output_dim": ("units",), "nb_filter": ("filters",), "filter_length": ("kernel_size",), "border_mode": ("padding",),
    "subsample": ("strides",), "subsample_length": ("strides",), "stride": ("strides",), "pool_length": ("pool_size",),
    "init": ("kernel_initializer", "embeddings_initializer"), "inner_init": ("recurrent_initializer",),
    "inner_activation": ("recurrent_activation",), "W_regularizer": ("kernel_regularizer", "embeddings_regularizer"),
    "U_regularizer": ("recurrent_regularizer",), "b_regularizer": ("bias_regularizer",),
    "W_constraint": ("kernel_constraint",), "b_constraint": ("bias_constraint",), "bias": ("use_bias",),
    "dim_ordering": ("data_format",), "p": ("rate",), "sigma": ("stddev",), "dropout_W": ("dropout",),
    "dropout_U": ("recurrent_dropout",),
    "lr": ("learning_rate",), "input": ("inputs",), "output": ("outputs",), "nb_epoch": ("epochs",),
}
#: former arguments without a meaning today
_DROPPED = ("consume_less", "forget_bias_init", "implementation", "decay", "mode")
_VALUES = {"th": "channels_first", "tf": "channels_last"}
#: functions of `keras.backend` whose names are others in `keras.ops`
_OPERATIONS = {
    "dot": "matmul", "pow": "power", "permute_dimensions": "transpose", "batch_dot": "matmul", "gather": "take",
    "concatenate": "concatenate",
}
# fmt: on
_BACKENDS = ("tensorflow", "jax", "torch")


class AliasLoader(importlib.abc.Loader):
    """Maker of a former module, which has all names of its module of today."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        kind = _Merge if spec.name == "keras.layers.merge" else ModuleType
        return kind(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        today = importlib.import_module(ALIASES[module.__name__])
        vars(module).update({name: value for name, value in vars(today).items() if not name.startswith("__")})


class _Merge(ModuleType):
    """Module `keras.layers.merge` of Keras 2, which was a function in Keras 1."""

    def __call__(self, inputs: Any, mode: str = "sum", concat_axis: int = -1, **others: Any) -> Any:
        layers = sys.modules["keras.layers"]
        if mode == "concat":
            return layers.concatenate(inputs, axis=concat_axis)
        names = {"sum": "add", "mul": "multiply", "ave": "average", "max": "maximum", "dot": "dot"}
        return getattr(layers, names[mode])(inputs)


def settle_backend() -> None:
    """Let Keras compute with TensorFlow if a script asks for a library that Keras has given up."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") not in _BACKENDS:
        os.environ["KERAS_BACKEND"] = "tensorflow"


# ---------------------------------------------------------------- Keras


def _patch_keras(keras: Any) -> None:
    """Give Keras 3 the names and arguments of Keras 1 and 2."""
    for module in (keras.layers, keras.optimizers):
        for kind in {value for value in vars(module).values() if isinstance(value, type) and "__init__" in vars(value)}:
            _take_former_arguments(kind, "__init__")
    _take_former_arguments(sys.modules["keras.src.models.functional"].Functional, "__init__")
    _rename_in_new(keras.Model)
    _take_former_arguments(keras.Model, "fit")
    _patch_backend(keras.backend)
    keras.layers.Layer = keras.Layer
    warnings.filterwarnings("ignore", message="Do not pass an `input_shape`")
    keras.layers.merge = importlib.import_module("keras.layers.merge")


def _patch_backend(backend: Any) -> None:
    def image_dim_ordering() -> str:
        return "th" if backend.image_data_format() == "channels_first" else "tf"

    def set_image_dim_ordering(ordering: str) -> None:
        backend.set_image_data_format(_VALUES[ordering])

    def nothing(*_: Any, **__: Any) -> None: ...

    def former(name: str) -> Any:
        if name == "tf":
            return importlib.import_module("tensorflow").compat.v1
        return getattr(importlib.import_module("keras.ops"), _OPERATIONS.get(name, name))

    backend.image_dim_ordering, backend.set_image_dim_ordering = image_dim_ordering, set_image_dim_ordering
    backend.set_session = backend.get_session = backend.set_learning_phase = nothing
    backend.int_shape = lambda x: tuple(x.shape)
    backend.__getattr__ = former


def _take_former_arguments(owner: Any, name: str) -> None:
    """Have the function `name` of a class take arguments by their former names, too."""
    function = vars(owner).get(name) or getattr(owner, name)
    signature = inspect.signature(function)
    parameters = signature.parameters
    known = {*parameters}
    kernel = "kernel_size" in known and [*parameters].index("kernel_size")
    n_sides = next((int(letter) for letter in owner.__name__ if letter in "23"), 0)

    @functools.wraps(function)
    def taking(self: Any, *arguments: Any, **given: Any) -> Any:
        given = _today(given, known)
        if kernel == 2 and len(arguments) == 1 + n_sides > 1 and all(isinstance(value, int) for value in arguments):
            # Keras 1: filters, rows and columns of the kernel (and slices)
            arguments = arguments[0], arguments[1:]
        if kernel and "nb_row" in given:
            given["kernel_size"] = (given.pop("nb_row"), given.pop("nb_col"))
        return function(self, *arguments, **given)

    taking.__signature__ = signature  # type: ignore[attr-defined]  # Keras looks at it
    setattr(owner, name, taking)


def _rename_in_new(owner: Any) -> None:
    function = owner.__new__

    def __new__(cls: type, *arguments: Any, **given: Any) -> Any:
        if issubclass(cls, owner) and {"input", "output"} <= given.keys():
            given = _today(given, {"inputs", "outputs", "name"})
        return function(cls, *arguments, **given)

    owner.__new__ = staticmethod(__new__)


def _today(given: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return arguments by their names of today; `known`: those that a function has."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        today = next((new for new in _ARGUMENTS.get(name, ()) if new in known and name not in known), name)
        if name in _DROPPED and name not in known:
            continue
        made[today] = _VALUES.get(value, value) if name == "dim_ordering" else value
    return made


# ---------------------------------------------------------------- torch


def _patch_torch(torch: Any) -> None:
    """Let `cuda()` leave tensors and modules where they are, if there is no GPU."""
    if torch.cuda.is_available():
        return

    def stay(self: Any, *_: Any, **__: Any) -> Any:
        return self

    torch.Tensor.cuda = torch.nn.Module.cuda = stay


#: package -> function that adds former names to it
PATCHES: Mapping[str, Callable[[ModuleType], None]] = {"keras": _patch_keras, "torch": _patch_torch}


# ---------------------------------------------------------------- the hook


class _Loader(importlib.abc.Loader):
    """Maker of a module from its table: a name is looked up when it is asked for."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        table = MODULES[module.__name__]

        def __getattr__(name: str) -> Any:
            if name not in table:
                known = f"It has {', '.join(table)}." if table else "It has no names of its own."
                raise AttributeError(f"`{module.__name__}` has no {name!r} under `nnlo-opt run-legacy`. {known}")
            return getattr(importlib.import_module(table[name]), name)

        vars(module).update(__getattr__=__getattr__, __all__=[*table])
        maker = next((name for name in table if ".model_" in module.__name__ and name.startswith("make_")), "")
        if maker:  # a module of one model
            name = module.__name__.rpartition(".model_")[2].removesuffix("_tf")
            vars(module).update(get_model=getattr(module, maker), get_name=lambda: name)


class _Patching(importlib.abc.Loader):
    """Loader of a framework that adds former names to it once it is loaded."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        PATCHES[module.__name__](module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Finder(importlib.abc.MetaPathFinder):
    """Finder of all modules of `MODULES`, and of what Keras and torch were."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in MODULES:
            if name == "models" and _has_own_models():
                return None
            is_package = any(other.startswith(f"{name}.") for other in MODULES)
            ours = importlib.machinery.ModuleSpec(name, _Loader(), is_package=is_package)
            if name == "models":  # modules of the user beside NNLO's, in a folder without __init__.py
                ours.submodule_search_locations = [str(folder) for folder in _model_folders()]
            return ours
        if name in ALIASES:
            return importlib.machinery.ModuleSpec(name, AliasLoader(), is_package=True)
        if name in PATCHES:
            settle_backend()
            finders = (finder for finder in sys.meta_path if finder is not self)
            found = (finder.find_spec(name, path, target) for finder in finders if hasattr(finder, "find_spec"))
            spec = next((spec for spec in found if spec is not None), None)
            if spec is not None and spec.loader is not None:
                spec.loader = _Patching(spec.loader)
            return spec
        return None


def _has_own_models() -> bool:
    """Return True if the user has a package `models` that is not NNLO's."""
    return any(
        (folder / "__init__.py").is_file() and not (folder / "Models.py").is_file() for folder in _model_folders()
    )


def _model_folders() -> list[Path]:
    return [Path(folder or os.curdir) / "models" for folder in sys.path]


def install() -> None:
    """Give this process the modules; the working folder joins the path of modules. Idempotent."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def run_script(argv: Sequence[str]) -> int:
    """Run the script `argv[0]` with the further words as its own, as Python does; return the exit code.

    If it raises under mpirun, all ranks are ended: those that wait for this one would wait for ever.
    """
    install()
    path = Path(argv[0])
    if not path.is_file():
        print(f"`run-legacy` must be given a script or a driver. Received: {argv[0]}, which is no file.")
        return EXIT_WRONG_REQUEST
    sys.argv = [*argv]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        if isinstance(error, SystemExit) and code in (None, 0):
            return 0
        if isinstance(error, NnloError):
            print(error, file=sys.stderr)
            code = error.exit_code
        elif isinstance(error, SystemExit) and isinstance(code, str):
            print(code, file=sys.stderr)
        elif not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        mpi = sys.modules.get("mpi4py.MPI")
        number = code if isinstance(code, int) else 1
        if mpi is not None and mpi.COMM_WORLD.size > 1:
            mpi.COMM_WORLD.Abort(number)
        return number
    return 0
