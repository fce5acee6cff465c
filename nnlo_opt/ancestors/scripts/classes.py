"""Classes and functions of NNLO and mpi_learn under their former names, based on our Python interface.

For a request that had no effect in the ancestor either, rank 0 prints that it is ignored.
"""

import copy
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnlo_opt
from nnlo_opt.ancestors.scripts import MODELS, settle_backend
from nnlo_opt.core.base.errors import ConfigurationError, require_known
from nnlo_opt.core.base.trees import n_samples
from nnlo_opt.core.data.ragged import concatenate
from nnlo_opt.engine.models.builders import open_model
from nnlo_opt.engine.runtime.devices import NO_GPU, cores, find_gpus, node_place, place

_LEVELS = {"TRACE": logging.DEBUG, **logging.getLevelNamesMapping()}
_FORMAT = "[%(levelname)s] %(message)s"


@functools.cache
def say(line: str) -> None:
    """Print a line once, on rank 0."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or mpi.COMM_WORLD.rank == 0:
        print(line, flush=True)


# ---------------------------------------------------------------- the training


class Algo(nnlo_opt.Algo):
    """Algorithm with the ancestors' arguments, without `elastic_lr` and `elastic_momentum`, which had no effect."""

    def __init__(self, optimizer: str | None, **given: Any) -> None:
        for name in ("elastic_lr", "elastic_momentum"):
            value = given.pop(name, None)
            if value and given.get("mode") == "easgd":
                say(
                    f"`{name}={value}` of Algo is ignored, because NNLO and mpi_learn never used it; "
                    "`worker_optimizer_params` sets the learning rate of the workers' local steps."
                )
        if given.get("loss") == "dummy":  # as in NNLO's documentation of its GAN
            given["loss"] = None
        super().__init__(optimizer, **given)

    def search_options(self, n_workers: int) -> dict[str, Any]:
        """Return the settings as options of `nnlo_opt.optimize`."""
        beta = {} if self.elastic_force is None else {"elastic_force": self.elastic_force * n_workers}
        return {name: value for name, value in self._settings.items() if value not in (None, {})} | beta

    def load(self, fn: str) -> None:
        """Do nothing: a manager resumes from its checkpoint."""
        say(f"`Algo.load({fn!r})` changes nothing: MPIManager continues from its `checkpoint` by itself.")

    def save(self, fn: str | None = None) -> None:
        """Do nothing: a manager's checkpoint includes the optimizer."""


class MPIManager(nnlo_opt.MPIManager):
    """Manager whose builder may return an MPIModel."""

    def __init__(self, comm: Any, data: Any, algo: Any, model_builder: Any, *arguments: Any, **given: Any) -> None:
        super().__init__(comm, data, algo, _Builder(model_builder), *arguments, **given)


class _Builder(nnlo_opt.ModelBuilder):
    """Builder of the plain model that another builder wraps."""

    def __init__(self, builder: Any) -> None:
        super().__init__(getattr(builder, "comm", None))
        self.builder = builder
        self.custom_objects = getattr(builder, "custom_objects", {})
        self.trains_itself = getattr(builder, "trains_itself", False)

    def build_model(self) -> Any:
        built = self.builder.build_model()
        if isinstance(built, MPIModel) and built.model is None:
            raise ConfigurationError("A manager trains one model. Received: MPIModel with `models`; give `model`.")
        return built.model if isinstance(built, MPIModel) else built

    def get_backend_name(self) -> str | None:
        asked: Callable[[], str | None] = getattr(self.builder, "get_backend_name", lambda: None)
        return asked()


class Data(nnlo_opt.Data):
    """Data with the helpers of the ancestors."""

    def generate_data_inf(self) -> Iterator[Any]:
        """Yield batches endlessly."""
        while True:
            yield from self.generate_data()

    def concat_data(self, data1: Any, data2: Any) -> Any:
        """Concatenate two arrays or lists of arrays."""
        return concatenate([data1, data2])

    def get_num_samples(self, data: Any) -> int:
        """Return the length of an array, or of the first of a list."""
        return n_samples(data)


class H5Data(Data, nnlo_opt.H5Data):
    """HDF5 files with the helpers of the ancestors."""


def get_device(comm: Any, num_masters: int = 1, gpu_limit: int = -1, gpu_for_master: bool = False) -> str:
    """Return cpu, or `gpu` with the number of a GPU on this node (or the name of a slice of one) for this rank."""
    gpu = place(node_place(os.environ)[0], find_gpus(os.environ).names, None if gpu_limit < 0 else gpu_limit)
    return "cpu" if gpu == NO_GPU else f"gpu{gpu}"


def get_groups(
    comm: Any, num_masters: int = 1, num_processes: int = 1
) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Return the ranks of the masters, of each group with its master, and of each worker."""
    starts, n_groups = range(num_masters, comm.Get_size(), num_processes), max(1, num_masters - 1)
    groups = [sorted([num_masters - 1 - group, *starts[group::n_groups]]) for group in range(n_groups)]
    workers = [[*range(start, min(start + num_processes, comm.Get_size()))] for start in starts]
    return [*range(num_masters)], groups, workers


def get_device_name(dev_type: str, dev_num: int, backend: str = "tensorflow") -> str:
    """Return the name of a device for TensorFlow."""
    return f"/{dev_type}:{dev_num}"


# ---------------------------------------------------------------- models


class MPIModel:
    """Wrapper of one or several Keras models; attributes are looked up in the model."""

    def __init__(self, model: Any = None, models: Sequence[Any] | None = None) -> None:
        self.model, self.models = model, models
        self.histories: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or vars(self).get("model") is None:
            raise AttributeError(name)
        return getattr(self.model, name)

    def figure_of_merit(self) -> float:
        """Return 1 - validation accuracy of the last epoch."""
        return float(1 - self.histories["val_acc"][-1])

    def close(self) -> None:
        """Do nothing."""


class MPITModel(MPIModel):
    """A torch module."""

    def __init__(self, model: Any = None, gpus: int = 0) -> None:
        super().__init__(model)
        self.gpus = gpus

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of all parameters."""
        return [parameter.detach().cpu().numpy().copy() for parameter in self.model.parameters()]

    def set_weights(self, weights: Sequence[np.ndarray] = ()) -> None:
        """Set all parameters."""
        for parameter, value in zip(self.model.parameters(), weights, strict=True):
            parameter.data.copy_(parameter.data.new_tensor(value))


class ModelTensorFlow(nnlo_opt.ModelBuilder):
    """Keras model from a module FILE.py, an architecture FILE.json or its text, or a given model.

    `others` may contain `filename` and `json_str`, as in mpi_learn.
    """

    _framework = "keras"

    def __init__(
        self, comm: Any, source: Any = None, device_name: str = "cpu", custom_objects: Any = None, **others: Any
    ) -> None:
        super().__init__(comm)
        self.source, self.json_str = others.get("filename", source), others.get("json_str")
        self.device, self.custom_objects, self.weights = device_name, custom_objects or {}, others.get("weights")

    def build_model(self, local_session: bool = True) -> Any:
        is_file = isinstance(self.source, str | os.PathLike)
        filename, model = (str(self.source), None) if is_file else (None, self.source)
        return load_model(filename, model, self.weights, self.custom_objects, self.json_str)


ModelFromJson = ModelFromJsonTF = ModelTensorFlow


class ModelPytorch(nnlo_opt.ModelBuilder):
    """Torch module from FILE.py, a file saved by torch, or a given module."""

    _framework = "torch"

    def __init__(self, comm: Any, source: Any = None, weights: Any = None, gpus: int = 0, filename: Any = None) -> None:
        super().__init__(comm)
        self.source, self.weights, self.gpus = filename or source, weights, gpus

    def build_model(self, local_session: bool = True) -> Any:
        if not isinstance(self.source, str | os.PathLike):
            return copy.deepcopy(self.source)
        torch_module = importlib.import_module("nnlo_opt.engine.models.torch.framework")
        model = open_model(str(self.source)).build({}, torch_module)
        if self.weights:
            torch_module.load_state(model, torch_module.read_state(Path(self.weights)), self.weights)
        return model


class GANModelBuilder(nnlo_opt.ModelBuilder):
    """NNLO's GAN of showers; its networks are not available separately."""

    _framework, trains_itself = "keras", True

    def __init__(self, c: Any = None, device_name: str = "cpu", tf: bool = False, weights: str | None = None) -> None:
        super().__init__(c)
        self.model_parameters, self.device = dict[str, Any](), device_name
        if weights:
            raise ConfigurationError(
                "`weights` of GANModelBuilder must be left out, because NNLO's networks were different. Received: "
                f"{weights!r}."
            )

    def set_params(self, **parameters: Any) -> None:
        """Set arguments of the GAN, such as `latent_size`."""
        self.model_parameters |= parameters

    def build_model(self, local_session: bool = False) -> Any:
        return importlib.import_module("nnlo_opt.models.builtin.gan").get_model(**self.model_parameters)


class GANModel:
    """Refuses to use NNLO's GAN without its builder."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigurationError(
            "A script must build NNLO's GAN with `GANModelBuilder`. Received: GANModel or GANBuilder. Search its "
            "parameters by `OptimizationDriver --example gan`."
        )


GANBuilder = GANModel


def load_model(
    filename: Any = None, model: Any = None, weights_file: Any = None, custom_objects: Any = None, json_str: Any = None
) -> Any:
    """Return the Keras model of a file or text, or a copy of `model`, with the weights of a file if given.

    In mpi_learn the second argument is the text.
    """
    json_str = model if isinstance(model, str) else json_str
    if json_str is not None or (filename is not None and filename.endswith(".json")):
        return nnlo_opt.ModelFromJson(None, filename, json_str, custom_objects, weights_file).build_model()
    keras: Any = importlib.import_module("keras")
    new = keras.models.clone_model(model) if filename is None else open_model(filename).build({})
    if weights_file is not None:
        new.load_weights(weights_file)
    return new


class OptimizerBuilder:
    """Creates an optimizer from its name and arguments; plain SGD has learning rate 1, as in NNLO."""

    def __init__(self, name: str, config: Mapping[str, Any] | None = None, horovod_wrapper: bool = False) -> None:
        self.name, self.config = name, dict(config or {})
        if name == "sgd" and not {"lr", "learning_rate"} & self.config.keys():
            self.config["lr"] = 1.0

    def build(self) -> Any:
        """Return an optimizer of Keras."""
        keras: Any = importlib.import_module("keras")
        config = {"learning_rate" if key == "lr" else key: value for key, value in self.config.items()}
        return keras.optimizers.get({"class_name": self.name, "config": config})

    def build_torch(self, model: Any) -> Any:
        """Return an optimizer of torch for the parameters of `model`."""
        optimizers: Any = importlib.import_module("torch.optim")
        kinds = {"sgd": "SGD", "adadelta": "Adadelta", "rmsprop": "RMSprop", "adam": "Adam"}
        return getattr(optimizers, kinds[self.name])(model.parameters(), **self.config)


# ---------------------------------------------------------------- the rest


def import_keras(tries: int = 10) -> None:
    """Import Keras with this rank's share of the cores, and without its messages."""
    settle_backend()
    n_threads = max(1, len(cores()) // node_place(os.environ)[1])
    importlib.import_module("nnlo_opt.engine.models.keras.framework").import_framework(n_threads)


def weights_from_shapes(weights_shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Return arrays of zeros."""
    return [np.zeros(shape, np.float32) for shape in weights_shapes]


def shapes_from_weights(weights: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Return the shapes of arrays."""
    return [w.shape for w in weights]


class _IdleHelper:
    """Helper of the ancestors without effect here; prints a line when a script constructs or enables it."""

    def __init__(self, line: str) -> None:
        self._line = line

    def __call__(self, *_: Any, **__: Any) -> "_IdleHelper":
        say(self._line)
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self if name == "enable" else lambda *_, **__: []


Timeline = Trace = _IdleHelper("A timeline of a script is not recorded; `TrainingDriver --timeline` records one.")
Monitor = _IdleHelper("`Monitor` measures nothing by itself; `MPIManager(monitor=True)` does.")


def trace(original_function: Any = None, **_: Any) -> Any:
    """Return the function unchanged, or a decorator that does."""
    return original_function or trace


def get_log_level(levelstr: str = "info") -> int:
    """Return the logging level of this name."""
    return _LEVELS.get(levelstr.upper(), logging.INFO)


def initialize_logger(
    filename: str | None = None, file_level: str = "info", stream: bool = True, stream_level: str = "info"
) -> None:
    """Log to the terminal, and to a file if given."""
    handlers: list[logging.Handler] = [logging.StreamHandler()] if stream else []
    handlers += [logging.FileHandler(filename)] if filename else []
    logging.basicConfig(level=get_log_level(stream_level), handlers=handlers, format=_FORMAT, force=True)


def set_logging_prefix(*_: Any, **__: Any) -> None:
    """Do nothing: each rank has its own log."""


# ---------------------------------------------------------------- the package `models` of NNLO

_MAKERS: dict[str, Callable[..., Any]] = {}
for _name in MODELS:
    _module, _deep = importlib.import_module(MODELS[_name]), "deep_" * (_name == "cifar10")
    _make: Any = functools.partial(getattr(_module, f"get_{_deep}model"))
    _make.parameter_range = getattr(_module, f"{_deep}parameter_range", ())
    _MAKERS[_name] = globals()[f"make_{_name}_model"] = _make
MNistNet, CNN = _MAKERS["mnist_torch"], _MAKERS["topclass_torch"]


def model_function(model_name: str) -> Callable[..., Any]:
    """Return the function that builds the model of this name; ConfigurationError if there is none."""
    require_known("A model", model_name, _MAKERS)
    return _MAKERS[model_name]


def make_model(model_name: str, **args: Any) -> Any:
    """Return the model of this name with these parameters."""
    return model_function(model_name)(**args)
