"""Definition of a model or objective by `--model`: a Python module, a built-in model, or a saved model.

A model module may define, in addition to `get_model(**parameters)`:

    get_model.parameter_range   the search space
    feasible(parameters)        returns False for points that are not to be tried; or get_model.feasible
    get_name()                  the model's name; by default the name of the file
    get_train(), get_val()      data files: a list of paths, or the path of a list file; or the samples themselves
                                (`engine.data.made`). They may take parameters of the model
    get_features(), get_labels()   name of a data set, or (name, function applied to the array)
    get_loss()                  the framework's name of a loss, or a function (y_true, y_pred); for several outputs also
                                a list of them, or a dict by the names of the outputs
    get_callbacks()             Keras callbacks of one training, as a list
    get_loss_weights()          weight of the loss of each output: a list, or a dict by the names of the outputs
    get_metrics()               metrics of the framework, or their names: a list, or a dict by the names of the outputs
    custom_objects              a dict of layers and functions by their names in saved architectures;
                                or get_custom_objects() that returns it
    get_model.dtype_policy      Keras's policy for the layers, for example "mixed_bfloat16"
    get_model.jit_compile       True to compile with XLA
    get_model.trains_itself     True if the model is a `engine.models.composite.CompositeModel`

Only `build` imports a framework here, unless the module itself does.
"""

import ast
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, Literal

import nnlo_opt
from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError, did_you_mean
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.user_code import describe, line_in
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME, feasible_in
from nnlo_opt.engine.data.made import in_words
from nnlo_opt.engine.loading.modules import execute_file, own_files
from nnlo_opt.engine.models.framework import Framework, framework_named, framework_of, syntax_tree
from nnlo_opt.engine.models.losses import LossRequest, WeightRequest

Kind = Literal["model", "objective"]
#: data files as a list of paths, or as the path of a list file that names them
Files = tuple[Path, ...] | Path
Adaptor = Callable[[Any], Any]

logger = logging.getLogger(__name__)
#: function that a module must define, with the kind of definition that it makes
FUNCTIONS: Mapping[str, Kind] = {"get_model": "model", "objective": "objective"}
_BUILTIN = Path(nnlo_opt.__file__).parent / "models" / "builtin"


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in models."""
    return tuple(sorted(path.stem for path in _BUILTIN.glob("[!_]*.py")))


def model_file(spec: str) -> Path:
    """Return the file that `--model` names; it need not exist."""
    return _BUILTIN / f"{spec}.py" if spec in builtin_names() else Path(spec)


def names_objective(spec: str) -> bool:
    """Return True if `spec` is a Python file that defines `objective`, judging by its text without executing it.

    A framework must be imported before a user's module can import one, and must not be imported for an objective.
    """
    return objective_in(spec) is not None


def objective_in(spec: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the objective that the Python file `spec` defines, found in its text; None if there is none."""
    path = Path(spec)
    statements = syntax_tree(path).body if path.suffix == ".py" else []
    functions = (s for s in statements if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef))
    return next((function for function in functions if function.name == "objective"), None)


def open_model(spec: str, sha256: str | None = None, *, fresh: bool = False) -> "TrialDefinition":
    """Read the model that `--model` names, without building it; raise `ConfigurationError` if it cannot be read.

    Args:
        spec: value of the option.
        sha256: of a model that only a run names, whose code must be this user's own (`own_files`); empty if it is
            unknown, None for a model that a user names.
        fresh: True to leave the weights of a saved Keras model out (`--fresh-weights`).
    """
    path = model_file(spec)
    if spec in builtin_names():
        sha256 = None
    readers: dict[str, Callable[[Path], TrialDefinition]] = {
        ".py": lambda file: TrialDefinition.from_module(file, *own_files([file], sha256)),
        ".json": partial(TrialDefinition.from_architecture, fresh=fresh),
        **dict.fromkeys((".keras", ".h5", ".hdf5"), partial(TrialDefinition.from_saved_keras, fresh=fresh)),
        **dict.fromkeys((".pt", ".pth", ".torch"), partial(TrialDefinition.from_saved_torch, sha256=sha256)),
    }
    if path.suffix not in readers:
        raise ConfigurationError(
            f"A model must be a Python file, a model saved by Keras or torch, or a built-in model. Received: {spec!r}. "
            f"Give a file ending in .py, .json, .keras, .h5 or .pt, or one of: {', '.join(builtin_names())}."
            f"{did_you_mean(spec, builtin_names())}"
        )
    if not os.path.isfile(path):
        raise ConfigurationError(f"A model's file must exist. Received: {spec!r}, which is no file. Check the path.")
    return readers[path.suffix](path)


@dataclass(frozen=True)
class TrialDefinition:
    """Model that can be built, or objective that can be called, with the functions of its module."""

    name: str
    kind: Kind
    source: Path
    #: functions of the module by name; only `get_model` for an architecture
    functions: Mapping[str, Callable[..., Any]]
    #: dimensions as the module defines them, of this package or of scikit-optimize
    parameter_range: Any = None
    #: objects by the names that a saved architecture may contain
    custom_objects: Mapping[str, Any] = field(default_factory=dict)
    #: file next to `source` that belongs to the model as well; None if there is none
    beside: Path | None = None
    #: name of a function that only the user's script can call; empty if executing `source` defines it
    function: str = ""
    #: fingerprint of that function; empty if the files are the model
    fingerprint: str = ""
    #: `parts` and `notes` of `core.trials.identity.ModelFile`, for an objective that is not a file
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] | None = None
    #: False if a part of its module was executed, from which it cannot be built
    is_whole: bool = True

    @classmethod
    def from_module(cls, path: Path, text: bytes | None = None) -> "TrialDefinition":
        """Execute a model module, which may change the working folder; `text` as of `execute_file`."""
        absolute, names = path.absolute(), vars(execute_file(path, text))
        return cls.from_names(names, path if path.absolute() == absolute else absolute)

    @classmethod
    def from_names(cls, names: Mapping[str, Any], path: Path) -> "TrialDefinition":
        """Return what the model module at `path` defines; `names` are its values by name."""
        functions = {name: value for name, value in names.items() if callable(value)}
        if (feasible := feasible_in(names)) is not None:
            functions[CONSTRAINT_NAME] = feasible
        found = [name for name in FUNCTIONS if name in functions]
        if len(found) != 1:
            raise ConfigurationError(
                f"A model module must define either `get_model` or `objective`. Received: {path} with "
                f"{'both' if found else 'neither'}. {'Remove' if found else 'Add'} one of them."
            )
        spaces = (getattr(functions[found[0]], "parameter_range", None), names.get("parameter_range"))
        space = next((space for space in spaces if space is not None), None)
        name = _call(functions, "get_name", path) if "get_name" in functions else path.stem
        return cls(
            name=str(name),
            kind=FUNCTIONS[found[0]],
            source=path,
            functions=functions,
            parameter_range=space,
            custom_objects=names.get("custom_objects", {}),
        )

    @classmethod
    def from_architecture(cls, path: Path, *, fresh: bool = False) -> "TrialDefinition":
        """Return a JSON architecture as a model without parameters.

        If a `.h5` file of the same name lies next to it (`legacy_weights`), the model starts with its weights, unless
        `fresh`.
        """
        from nnlo_opt.engine.models.legacy.weights import find_legacy_weights, load_legacy_weights

        text = path.read_text(errors="replace")
        from nnlo_opt.engine.models.legacy.architecture import read_architecture

        read_architecture(text, str(path))
        weights = None if fresh else find_legacy_weights(path)

        def get_model() -> Any:
            from nnlo_opt.engine.models.keras.framework import model_from_architecture

            model = model_from_architecture(text, str(path))
            if weights is not None:
                load_legacy_weights(model, weights)
                logger.info("%s starts with the weights of %s", path, weights)
            return model

        name = path.stem.removesuffix("_arch")
        return cls(name, "model", path, {"get_model": get_model}, beside=weights)

    @classmethod
    def from_saved_keras(cls, path: Path, *, fresh: bool = False) -> "TrialDefinition":
        """Return a model that Keras has saved whole: `.keras`, or `.h5` of Keras 1 and 2; `fresh`: without weights."""

        def get_model() -> Any:
            from nnlo_opt.engine.models.keras.framework import saved_model

            return saved_model(path, fresh=fresh)

        # A process reads an HDF5 file first, as damage may crash it.
        beside = None if path.suffix == ".keras" else path
        return cls(path.stem, "model", path, {"get_model": get_model}, beside=beside)

    @classmethod
    def from_saved_torch(cls, path: Path, sha256: str | None = None) -> "TrialDefinition":
        """Return a file saved by torch as a model: a TorchScript archive, or weights for the module in the `.py` file.

        The `.py` file lies next to the weights and has their name. It is ignored for an archive, which is complete:
        its code is executed by torch. `sha256` is as of `open_model`.
        """
        from nnlo_opt.engine.models.torch.framework import is_script, load_model

        beside = path.with_suffix(".py")
        files = [path] if is_script(path) or not beside.is_file() else [path, beside]
        data, *code = own_files(files, sha256)
        load = partial(load_model, path, data=data)
        if not code:
            return cls(path.stem, "model", path, {"get_model": load})
        module = cls.from_module(beside, *code)
        if module.kind != "model":
            raise ConfigurationError(
                f"The module next to saved weights must define `get_model`. Received: {beside} with `objective`, "
                f"next to {path}. Move one of them."
            )
        build = module.functions["get_model"]

        @wraps(build)
        def get_model(**parameters: Any) -> Any:
            return load(partial(build, **parameters))

        return replace(module, source=path, functions={**module.functions, "get_model": get_model}, beside=beside)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the source file and of the file next to it, if there is one."""
        if self.fingerprint:
            return self.fingerprint
        files = [self.source] if self.beside is None else [self.source, self.beside]
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()

    @property
    def accepted_parameters(self) -> frozenset[str] | None:
        """Names of parameters that may be given; None for any name (`**parameters`, or an objective)."""
        if self.kind == "objective" or any(p.kind is p.VAR_KEYWORD for p in self._parameters):
            return None
        return frozenset(p.name for p in self._parameters) | self._of_data

    @property
    def required_parameters(self) -> frozenset[str]:
        """Names of parameters that must be given."""
        variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return frozenset(p.name for p in self._parameters if p.default is p.empty and p.kind not in variadic)

    def check_parameters(self, names: Iterable[str]) -> None:
        """Raise `ConfigurationError` unless exactly these parameters can be given to the model."""
        given, accepted = set(names), self.accepted_parameters
        if accepted is not None and (unknown := sorted(given - accepted)):
            raise ConfigurationError(
                f"A parameter must be one that `get_model` of {self.source} accepts. Received: {unknown[0]!r}. "
                f"It accepts: {', '.join(sorted(accepted)) or 'none'}.{did_you_mean(unknown[0], accepted)}"
            )
        if missing := sorted(self.required_parameters - given):
            raise ConfigurationError(
                f"Every parameter of `get_model` of {self.source} must have a value. Received: none for "
                f"{missing[0]!r}. Add it to the search space, or give it a default."
            )

    def build(self, parameters: Mapping[str, Any], framework: Framework | None = None) -> Any:
        """Build the model at `parameters` and return it.

        Args:
            parameters: arguments of `get_model`.
            framework: framework that is imported; None for Keras. The model may belong to any imported framework.

        Raises:
            TrialError: if building fails, with the original error as its cause.
        """
        framework = framework or framework_named("keras")
        function = self.functions["get_model"]
        try:
            with framework.building(self._custom_objects(), getattr(function, "dtype_policy", None)):
                model = function(**self._of_model(parameters))
        except (NnloError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise TrialError(
                f"`get_model` of {self.source} failed at {dict(parameters)}{line_in(self.source, error)}, "
                f"{describe(error)}."
            ) from error
        if framework_of(model, framework, self.own_framework) is None:
            raise TrialError(
                f"`{self.function or 'get_model'}` of {self.source} must return {framework.NOUN}. Received: "
                f"{type(model).__name__}. Return the model itself."
            )
        return model

    @property
    def own_framework(self) -> Framework | None:
        """Framework that a module brings along for its models, as `get_model.framework`; None if it brings none."""
        return getattr(self.functions["get_model"], "framework", None)

    @property
    def jit_compile(self) -> bool:
        """True if `get_model` asks for compiled computations."""
        return bool(getattr(self.functions["get_model"], "jit_compile", False))

    @property
    def trains_itself(self) -> bool:
        """True if `get_model` announces a composite model (`engine.models.composite`)."""
        return bool(getattr(self.functions.get("get_model"), "trains_itself", False))

    @property
    def objective(self) -> Callable[..., Any]:
        """The function (parameters, comm, report) -> figure of merit; every rank of a block calls it."""
        return self.functions["objective"]

    def loss(self) -> LossRequest:
        """Return the result of `get_loss()`; None if the module does not define it."""

        def is_loss(value: Any) -> bool:
            return isinstance(value, str) or callable(value)

        rule = "a name or a function, or a list or dict of them"
        return self._read("get_loss", lambda value: is_loss(value) or _holds_all(value, is_loss), rule)

    def loss_weights(self) -> WeightRequest:
        """Return the result of `get_loss_weights()`; None if the module does not define it."""

        def is_weight(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool)

        return self._read("get_loss_weights", lambda value: _holds_all(value, is_weight), "a list or dict of numbers")

    def callbacks(self) -> list[Any]:
        """Return the result of `get_callbacks()`; empty if the module does not define it."""
        made = self._read("get_callbacks", lambda value: isinstance(value, list | tuple), "a list of Keras callbacks")
        return [*(made or ())]

    def metrics(self) -> Any:
        """Return the result of `get_metrics()`; None if the module does not define it."""

        def holds(value: Any) -> bool:
            return isinstance(value, list | tuple | Mapping)

        return self._read("get_metrics", holds, "a list of metrics, or a dict of them by the names of the outputs")

    def made_for(self, function: str, first: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the result of `get_optimizer(module, ...)` or `get_scheduler(optimizer, ...)`.

        Args:
            function: a function of the module.
            first: its first argument; the others are those of the model's parameters that it takes.
        """
        given = self.arguments_of(function, parameters)
        for own in _parameters_of(self.functions[function])[:1]:
            given.pop(own.name, None)
        return _call({function: partial(self.functions[function], first)}, function, self.source, given)

    def _custom_objects(self) -> Mapping[str, Any]:
        own = self._read("get_custom_objects", lambda value: isinstance(value, Mapping), "a dict of objects by name")
        return own or self.custom_objects

    @property
    def _of_data(self) -> frozenset[str]:
        """Names of the parameters of other functions of the module than `get_model`."""
        taken = [
            p
            for name, n_own in (("get_train", 0), ("get_val", 0), ("get_optimizer", 1), ("get_scheduler", 1))
            if name in self.functions
            for p in _parameters_of(self.functions[name])[n_own:]
        ]
        return frozenset(p.name for p in taken if p.kind is not p.VAR_KEYWORD)

    def _of_model(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters without those that only other functions take."""
        own = {p.name for p in self._parameters}
        if any(p.kind is p.VAR_KEYWORD for p in self._parameters):
            return parameters
        return {name: value for name, value in parameters.items() if name in own or name not in self._of_data}

    @property
    def _parameters(self) -> list[inspect.Parameter]:
        """Parameters of `get_model`; an objective has none."""
        return [*inspect.signature(self.functions["get_model"]).parameters.values()] if self.kind == "model" else []

    def samples(self, function: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of `get_train` or `get_val`: data files as `Files`, anything else unchanged.

        Args:
            function: a function of the module.
            arguments: its arguments, see `arguments_of`.
        """
        with PULSE.unwatched():
            value = _call(self.functions, function, self.source, arguments)
        paths = value if isinstance(value, list | tuple) else [value]
        if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
            return value
        return tuple(map(Path, value)) if isinstance(value, list | tuple) else Path(value)

    def arguments_of(self, function: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the model's parameters that a function of the module takes."""
        taken = _parameters_of(self.functions[function])
        takes_all = any(p.kind is p.VAR_KEYWORD for p in taken)
        names = {p.name for p in taken}
        return {name: value for name, value in parameters.items() if takes_all or name in names}

    def dataset(self, function: str) -> tuple[str, Adaptor | None] | None:
        """Return the data set that `get_features` or `get_labels` names, and the function applied to it.

        None if the module does not define the function.
        """

        def holds(value: Any) -> bool:
            if isinstance(value, tuple):
                return len(value) == 2 and isinstance(value[0], str) and callable(value[1])
            return isinstance(value, str)

        value = self._read(function, holds, "a name, or (name, function)")
        return (value, None) if isinstance(value, str) else value

    def _read(self, function: str, holds: Callable[[Any], bool], rule: str) -> Any:
        """Return the result of a function of the module, for which `holds` must be True; None without it."""
        if function not in self.functions:
            return None
        value = _call(self.functions, function, self.source)
        if not holds(value):
            raise ConfigurationError(
                f"`{function}` of {self.source} must return {rule}. Received: {in_words(value)}. Correct the module."
            )
        return value


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a function in C
        return []


def _holds_all(value: Any, holds: Callable[[Any], bool]) -> bool:
    """Return True if `value` is a list or a dict, not empty, and `holds` is True for all its values."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return bool(values) and all(map(holds, values))


def _call(
    functions: Mapping[str, Callable[..., Any]], name: str, source: Path, arguments: Mapping[str, Any] | None = None
) -> Any:
    try:
        return functions[name](**arguments or {})
    except (ConfigurationError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigurationError(
            f"`{name}` of {source} must return without an error. Received: {describe(error)}. Correct the module."
        ) from error
