"""Import hook that provides the modules of NNLO and mpi_learn.

`install` puts a finder before all others. It provides the modules in `MODULES`, each with a table of names, and former
modules of Keras as aliases, and adds former names to Keras and torch when these are imported. It imports none of them
itself.
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
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from nnlo_opt.ancestors.scripts import MODELS, settle_backend
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_WRONG_REQUEST, NnloError
from nnlo_opt.engine.data.lists import look_in
from nnlo_opt.engine.models.legacy.layers import MERGES, RENAMED

#: module that defines the names, except those in `_HOMES`
_CLASSES = "nnlo_opt.ancestors.scripts.classes"
_HOMES = {
    **dict.fromkeys(("MPIKFoldManager", "ModelBuilder"), "nnlo_opt"),
    **dict.fromkeys(("Coordinator", "ProcessBlock"), "nnlo_opt.ancestors.scripts.search"),
}
_UTILS = "import_keras load_model weights_from_shapes shapes_from_weights get_device_name"
_LOGGER = "initialize_logger set_logging_prefix get_log_level"
_MAKERS = " ".join(("model_function make_model", *(f"make_{name}_model" for name in MODELS)))
# fmt: off
#: path below nnlo and mpi_learn -> its names
_PATHS: Mapping[str, str] = {
    **dict.fromkeys(("", "mpi", "optimize", "train", "util"), ""),
    "mpi.manager": "MPIManager MPIKFoldManager get_device get_groups",
    "optimize.coordinator": "Coordinator", "optimize.process_block": "ProcessBlock",
    "train.algo": "Algo", "train.data": "Data H5Data", "train.GanModel": "GANModel GANModelBuilder GANBuilder",
    "train.model": "ModelBuilder MPIModel MPITModel ModelFromJson ModelFromJsonTF ModelTensorFlow ModelPytorch",
    "train.optimizer": "OptimizerBuilder", "train.monitor": "Monitor", "train.trace": "Trace trace",
    "train.timeline": "Timeline", "util.timeline": "Timeline",
    "util.utils": _UTILS, "utils": _UTILS, "util.logger": _LOGGER, "logger": _LOGGER,
}
# fmt: on
_OF_MODELS = {"": "", ".Models": _MAKERS, ".TorchModels": "MNistNet CNN"}
#: module of NNLO or mpi_learn -> its names
MODULES: Mapping[str, str] = {
    **{f"{root}.{path}".rstrip("."): names for root in ("nnlo", "mpi_learn") for path, names in _PATHS.items()},
    **{f"{prefix}models{path}": names for prefix in ("", "nnlo.") for path, names in _OF_MODELS.items()},
    **{f"nnlo.models.model_{name}{'_tf' * ('torch' not in name)}": f"make_{name}_model" for name in MODELS},
}

# ---------------------------------------------------------------- former names of Keras and torch

_LAYERS = "core convolutional pooling recurrent normalization advanced_activations embeddings wrappers noise local"
#: former module -> current module
ALIASES: Mapping[str, str] = {
    **{f"keras.layers.{name}": "keras.layers" for name in (*_LAYERS.split(), "merge")},
    **dict.fromkeys(("keras.engine", "keras.engine.topology", "keras.engine.training"), "keras.layers"),
    "keras.objectives": "keras.losses",
    **{f"keras.utils.{name}_utils": "keras.utils" for name in ("np", "generic", "vis")},
}
#: former argument -> current ones; used if a function has one of these and no argument of the former name
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **{old: (new, new.replace("kernel", "embeddings")) for old, new in RENAMED.items()},
    **{"lr": ("learning_rate",), "input": ("inputs",), "output": ("outputs",), "nb_epoch": ("epochs",)},
}
#: former arguments that are ignored
_DROPPED = ("consume_less", "forget_bias_init", "implementation", "decay", "mode")
_VALUES = {"th": "channels_first", "tf": "channels_last"}
# fmt: off
#: function of `keras.backend` -> its name in `keras.ops`, if different
_OPERATIONS = {
    "dot": "matmul", "pow": "power", "permute_dimensions": "transpose", "batch_dot": "matmul", "gather": "take",
    "concatenate": "concatenate",
}
# fmt: on


class AliasLoader(importlib.abc.Loader):
    """Creates a former module with all names of the current one."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        kind = _Merge if spec.name == "keras.layers.merge" else ModuleType
        return kind(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        today = importlib.import_module(ALIASES[module.__name__])
        vars(module).update({name: value for name, value in vars(today).items() if not name.startswith("__")})


class _Merge(ModuleType):
    """Module `keras.layers.merge` of Keras 2, which was a function in Keras 1."""

    def __call__(self, inputs: Any, mode: str = "sum", concat_axis: int = -1, **others: Any) -> Any:
        axis = {"axis": concat_axis} if mode == "concat" else {}
        return getattr(sys.modules["keras.layers"], MERGES[mode][0].lower())(inputs, **axis)


# ---------------------------------------------------------------- Keras


def _patch_keras(keras: Any) -> None:
    """Add the names and arguments of Keras 1 and 2 to Keras 3."""
    for module in (keras.layers, keras.optimizers):
        for kind in {value for value in vars(module).values() if isinstance(value, type) and "__init__" in vars(value)}:
            _take_former_arguments(kind, "__init__")
    _take_former_arguments(sys.modules["keras.src.models.functional"].Functional, "__init__")
    _rename_in_new(keras.Model)
    _take_former_arguments(keras.Model, "fit")
    keras.Model.save_weights = _saving_weights(keras.Model.save_weights)
    _patch_backend(keras.backend)
    keras.layers.Layer = keras.Layer
    warnings.filterwarnings("ignore", message="Do not pass an `input_shape`")
    keras.layers.merge = importlib.import_module("keras.layers.merge")


def _saving_weights(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap Keras's `save_weights` to write the format of Keras 2 to files named as in Keras 2."""

    def save_weights(self: Any, filepath: Any, *arguments: Any, **given: Any) -> None:
        if str(filepath).endswith((".h5", ".hdf5")) and not str(filepath).endswith(".weights.h5"):
            importlib.import_module("nnlo_opt.engine.models.legacy.weights").save_legacy_weights(self, Path(filepath))
        else:
            original(self, filepath, *arguments, **given)

    return save_weights


def _patch_backend(backend: Any) -> None:
    def former(name: str) -> Any:
        if name == "tf":
            return importlib.import_module("tensorflow").compat.v1
        return getattr(importlib.import_module("keras.ops"), _OPERATIONS.get(name, name))

    backend.image_dim_ordering = lambda: "th" if backend.image_data_format() == "channels_first" else "tf"
    backend.set_image_dim_ordering = lambda ordering: backend.set_image_data_format(_VALUES[ordering])
    backend.set_session = backend.get_session = backend.set_learning_phase = lambda *_, **__: None
    backend.int_shape = lambda x: tuple(x.shape)
    backend.__getattr__ = former


def _take_former_arguments(owner: Any, name: str) -> None:
    """Make the function `name` of a class accept former names of arguments, too."""
    function = vars(owner).get(name) or getattr(owner, name)
    signature = inspect.signature(function)
    parameters = signature.parameters
    known = {*parameters}
    kernel = "kernel_size" in known and [*parameters].index("kernel_size")
    n_sides = next((int(letter) for letter in owner.__name__ if letter in "23"), 0)

    @functools.wraps(function)
    def taking(self: Any, *arguments: Any, **given: Any) -> Any:
        given = _renamed(given, known)
        if kernel == 2 and len(arguments) == 1 + n_sides > 1 and all(isinstance(value, int) for value in arguments):
            # Keras 1: filters, rows and columns of the kernel (and slices)
            arguments = arguments[0], arguments[1:]
        if kernel and "nb_row" in given:
            given["kernel_size"] = (given.pop("nb_row"), given.pop("nb_col"))
        return function(self, *arguments, **given)

    taking.__signature__ = signature  # type: ignore[attr-defined]  # Keras inspects it
    setattr(owner, name, taking)


def _rename_in_new(owner: Any) -> None:
    function = owner.__new__

    def __new__(cls: type, *arguments: Any, **given: Any) -> Any:
        if issubclass(cls, owner) and {"input", "output"} <= given.keys():
            given = _renamed(given, {"inputs", "outputs", "name"})
        return function(cls, *arguments, **given)

    owner.__new__ = staticmethod(__new__)


def _renamed(given: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return arguments under their current names; `known`: arguments of the function."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        today = next((new for new in _ARGUMENTS.get(name, ()) if new in known and name not in known), name)
        if name in _DROPPED and name not in known:
            continue
        made[today] = _VALUES.get(value, value) if name == "dim_ordering" else value
    return made


# ---------------------------------------------------------------- torch


def _patch_torch(torch: Any) -> None:
    """Make `cuda()` do nothing without a GPU, and `save` write modules as TorchScript."""
    original = torch.save

    def save(what: Any, f: Any, *arguments: Any, **given: Any) -> None:
        with suppress(Exception):  # a module that TorchScript does not support is pickled
            what = torch.jit.script(what) if isinstance(what, torch.nn.Module) else what
        if isinstance(what, torch.jit.ScriptModule):
            torch.jit.save(what, f)
        else:
            original(what, f, *arguments, **given)

    torch.save = save
    if not torch.cuda.is_available():
        torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self


#: package -> function that adds former names to it
PATCHES: Mapping[str, Callable[[ModuleType], None]] = {"keras": _patch_keras, "torch": _patch_torch}


# ---------------------------------------------------------------- the hook


class _Loader(importlib.abc.Loader):
    """Creates a module from its table; names are looked up on use."""

    def exec_module(self, module: ModuleType) -> None:
        table = MODULES[module.__name__].split()

        def __getattr__(name: str) -> Any:
            if name not in table:
                known = f"It has {', '.join(table)}." if table else "It defines no names."
                raise AttributeError(f"`{module.__name__}` has no {name!r} under `nnlo-opt run-legacy`. {known}")
            return getattr(importlib.import_module(_HOMES.get(name, _CLASSES)), name)

        vars(module).update(__getattr__=__getattr__, __all__=table)
        maker = next((name for name in table if ".model_" in module.__name__ and name.startswith("make_")), "")
        if maker:  # module of one model
            name = module.__name__.rpartition(".model_")[2].removesuffix("_tf")
            vars(module).update(get_model=getattr(module, maker), get_name=lambda: name)


def _patch_once_loaded(loader: importlib.abc.Loader) -> None:
    """Make the loader of a framework add former names after loading it."""
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        PATCHES[module.__name__](module)

    vars(loader).update(exec_module=exec_module)


class Finder(importlib.abc.MetaPathFinder):
    """Finder of the modules in `MODULES`, of former modules of Keras, and of Keras and torch with former names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in MODULES:
            if name == "models" and _has_own_models():
                return None
            ours = importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)
            if name == "models":  # the user's modules beside NNLO's, in a folder without __init__.py
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
                _patch_once_loaded(spec.loader)
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
    """Install the finder, and add the working folder to `sys.path`. Idempotent."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def run_script(argv: Sequence[str]) -> int:
    """Run the script `argv[0]` with the remaining words as its arguments, like Python; return the exit code.

    If it raises under mpirun, all ranks are aborted, because others may wait for this one.
    """
    install()
    path = Path(argv[0])
    if not path.is_file():
        print(f"`run-legacy` must be given a script or a driver. Received: {argv[0]}, which is no file.")
        return EXIT_WRONG_REQUEST
    sys.argv = [*argv]
    look_in(argv[1:])
    sys.path.insert(0, str(path.resolve().parent))
    code: Any = EXIT_OK
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        code = error.code or EXIT_OK
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = EXIT_FAILURE
    except NnloError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = EXIT_FAILURE
    mpi = sys.modules.get("mpi4py.MPI")
    if code and mpi is not None and mpi.COMM_WORLD.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(code)
    return int(code)
