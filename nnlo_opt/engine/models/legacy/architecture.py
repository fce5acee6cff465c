"""Translation of architectures from Keras 1 or 2 to Keras 3: the graph of layers, without a framework.

`translate` takes the output of the old `to_json` and returns a config for Keras 3's `deserialize_keras_object`. The
module `layers` translates single layers. Names are kept, because weights are found by name.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import parse_json
from nnlo_opt.engine.models.legacy import layers as tables
from nnlo_opt.engine.models.legacy.layers import Config, Untranslatable, keras_object, translate_layer

logger = logging.getLogger(__name__)

#: class names of models, whose config contains layers
MODELS = frozenset({"Sequential", "Model", "Functional"})


def read_architecture(text: str, source: str, is_custom: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
    """Return the architecture for Keras 3, translated if an earlier Keras wrote it.

    `is_custom` returns True for the name of a known class that is not Keras's own.

    Raises:
        ConfigurationError: naming `source`, if `text` is not an architecture or has no counterpart in Keras 3.
    """
    try:
        architecture = parse_json(text)
        if isinstance(architecture, str):
            # `to_json` returns text, which many users have JSON-encoded a second time.
            architecture = parse_json(architecture)
    except ValueError as error:
        architecture, what = None, f"not JSON ({error})"
    else:
        what = "JSON without a model's class"
    keys = set(architecture) if isinstance(architecture, dict) else set()
    if {"class_name", "module"} <= keys:
        # Only Keras 3 writes the module of every class.
        return architecture
    if "class_name" in keys or {"name", "layers"} <= keys:
        return translate(architecture, source, is_custom)
    raise ConfigurationError(
        f"A model architecture must be a file written by `BuildModel` or Keras's `to_json`. Received: {source}, "
        f"{what}. Write it again."
    )


def translate(architecture: Mapping[str, Any], source: str, is_custom: Callable[[str], bool]) -> Config:
    """Translate an architecture of Keras 0, 1 or 2 to Keras 3, and log what the translation loses.

    Classes for which `is_custom` is True stay unchanged.

    Raises:
        ConfigurationError: naming `source`, if Keras 3 has no counterpart.
    """
    try:
        translator = _Translator(architecture, is_custom)
        config = translator.model(architecture)
    except Untranslatable as error:
        reason = str(error)
    except Exception as error:  # any kind, because any value may have any type
        reason = f"which cannot be followed, {type(error).__name__}: {error}"
    else:
        version = str(architecture.get("keras_version", "1 or 2" if "class_name" in architecture else "0"))
        _announce(version, tuple(sorted(translator.notes)), source)
        return config
    raise ConfigurationError(
        f"An architecture of Keras 1 or 2 must be made of layers that Keras 3 has too. Received: {source}, {reason}. "
        "Build the model in a Python module with `get_model`."
    )


@cache
def _announce(version: str, notes: tuple[str, ...], source: str) -> None:
    """Log once that a file is translated, although every trial reads it again."""
    logger.info("%s was written by Keras %s and is translated to Keras 3", source, version)
    for note in notes:
        logger.warning("%s: %s", source, note)


class _Translator:
    """Translator of one architecture; `notes` grows while layers are translated."""

    def __init__(self, architecture: Mapping[str, Any], is_custom: Callable[[str], bool]) -> None:
        #: returns True for the name of a known class that is not Keras's own
        self._is_custom: Callable[[str], bool] = is_custom
        policies = {config["config"]["name"] for config in _dicts(architecture) if config.get("class_name") == "Policy"}
        self.notes: set[str] = {f"computes in float32, not by policy {name!r}" for name in policies - {"float32"}}
        #: True if a layer keeps state from batch to batch, which requires batches of one size
        self._fixed_batch: bool = any(config.get("stateful") is True for config in _dicts(architecture))
        orders = {config["dim_ordering"] for config in _dicts(architecture) if "dim_ordering" in config}
        #: data format of layers that do not state it
        self._dim_ordering: str = "th" if orders == {"th"} else "tf"

    def model(self, item: Mapping[str, Any]) -> Config:
        """Return a full model, {"class_name", "config"}, or {"name", "layers"} for Keras 0."""
        item = _normalised(item)
        class_name, config = item["class_name"], _plain(item["config"])
        if class_name not in MODELS:
            raise Untranslatable(f"is a {class_name}, not a Sequential, Model or Functional", "which")
        if class_name != "Sequential":
            return self._graph(config)
        layers, name = _distinct(config["layers"]), config.get("name")
        if _starts_with_branches(layers):
            return self._graph({"name": name, **_unfolded(layers)})
        return self._sequence(name, layers)

    def _sequence(self, name: str | None, layers: list[Config]) -> Config:
        first = layers[0]
        shape = None if first["class_name"] == "InputLayer" else _input_shape(first)
        inputs = [] if shape is None else [_input_of(first, shape)]
        translated = [self._layer(layer) for layer in inputs + layers]
        return keras_object("Sequential", {"name": _valid(name), "layers": translated}, "keras")

    def _graph(self, config: Config) -> Config:
        layers = [_normalised(layer) for layer in config["layers"]]
        # Layers come before their connections, because an unsupported layer is the better explanation.
        translated = [self._layer(layer) for layer in layers]
        graph = _Graph(layers, config)
        return keras_object(
            "Model",
            {
                "name": _valid(config.get("name")),
                "layers": [
                    {**new, "name": layer["name"], "inbound_nodes": [graph.node(layer, node) for node in _nodes(layer)]}
                    for layer, new in zip(layers, translated, strict=True)
                ],
                "input_layers": graph.ends(config["input_layers"]),
                "output_layers": graph.ends(config["output_layers"]),
            },
            "keras",
        )

    def _layer(self, item: Config) -> Config:
        """Return a layer, or a model inside a model."""
        item = _normalised(item)
        name = item["config"].get("name") or item["name"]
        if item["class_name"] in MODELS:
            result = self.model(item)
        elif item["class_name"] == "InputLayer":
            result = self._input(item["config"])
        elif self._is_custom(item["class_name"]):
            own = {key: value for key, value in item["config"].items() if key not in {"batch_input_shape", "dtype"}}
            result = {**keras_object(item["class_name"], own), "module": None, "registered_name": item["class_name"]}
        else:
            class_name, config = item["class_name"], item["config"]
            if tables.CLASSES.get(class_name, class_name) in tables.OF_IMAGES and "data_format" not in config:
                config = {"dim_ordering": self._dim_ordering, **config}
            try:
                result = translate_layer(class_name, config, self._layer, self.notes)
            except Untranslatable as error:
                # The innermost layer is named.
                raise error if error.subject else Untranslatable(error.predicate, f"whose layer {name!r}") from error
        if name:
            result["config"]["name"] = _valid(name)
        return result

    def _input(self, config: Config) -> Config:
        if config.get("sparse") or config.get("ragged"):
            raise Untranslatable("is sparse or ragged, which is not supported", f"whose input {config.get('name')!r}")
        size, *shape = _shape_in(config) or [None]
        batch_shape = [size if self._fixed_batch else None, *shape]
        dtype = config.get("dtype") or config.get("input_dtype") or "float32"
        return keras_object("InputLayer", {"batch_shape": batch_shape, "dtype": dtype})


class _Graph:
    """Connections of a functional model: the sources of the inputs of every call."""

    def __init__(self, layers: list[Config], config: Config) -> None:
        self._classes: dict[str, str] = {layer["name"]: layer["class_name"] for layer in layers}
        ends = [config["input_layers"], config["output_layers"]]
        used = [ref for part in [*map(_nodes, layers), *ends] for ref in _refs(part)]
        last = {name: max(ref[1] for ref in used if ref[0] == name) for name in {ref[0] for ref in used}}
        #: calls to skip: in some versions models counted their construction as their first call
        self._skipped: dict[str, int] = {
            layer["name"]: int(last.get(layer["name"], 0) >= len(_nodes(layer)))
            for layer in layers
            if layer["class_name"] in MODELS
        }

    def node(self, layer: Config, data: Any) -> Config:
        """Return one call of `layer`: {"args", "kwargs"}."""
        refs, kwargs = list(_refs(data)), {}
        for ref in refs:
            kwargs.update(ref[3] if len(ref) > 3 and isinstance(ref[3], dict) else {})
        tensors = [self._tensor(ref) for ref in refs]
        class_name = tables.CLASSES.get(layer["class_name"], layer["class_name"])
        arguments = {key: self._argument(value) for key, value in kwargs.items() if not _is_void(value)}
        if class_name in tables.RECURRENT and len(tensors) > 1:
            return {"args": tensors[:1], "kwargs": {"initial_state": tensors[1:], **arguments}}
        is_list = len(tensors) > 1 or class_name in tables.MERGING or class_name == "Merge"
        return {"args": [tensors] if is_list else tensors, "kwargs": arguments}

    def ends(self, data: Any) -> Any:
        """Return the inputs or outputs of the model; a single one is not in a list."""
        if _is_ref(data):
            name, index, tensor = data[:3]
            # Only here does Keras 3 count the construction of a model as its first call.
            is_functional = self._classes[name] in {"Model", "Functional"}
            return [name, index - self._skipped.get(name, 0) + is_functional, tensor]
        if isinstance(data, dict):
            return {key: self.ends(value) for key, value in data.items()}
        if not isinstance(data, list):
            raise Untranslatable(f"names {data!r} where an input or output must be [layer, call, output]", "which")
        ends = [self.ends(value) for value in data]
        return ends[0] if len(ends) == 1 else ends

    def _tensor(self, ref: list[Any]) -> Config:
        name, index, tensor = ref[:3]
        if name not in self._classes:
            raise Untranslatable(f"takes an input from {name!r}, which is not one of its layers", "which")
        history = [name, index - self._skipped.get(name, 0), tensor]
        config = {"shape": [None], "dtype": "float32", "keras_history": history}
        return {"class_name": "__keras_tensor__", "config": config}

    def _argument(self, value: Any) -> Any:
        if _is_ref(value):
            return self._tensor(value)
        return [self._argument(item) for item in value] if isinstance(value, list) else value


def _nodes(layer: Config) -> list[Any]:
    """Return the calls of a layer."""
    return layer.get("inbound_nodes", [])


def _unfolded(layers: list[Config]) -> Config:
    """Return the functional model of a Sequential that starts with a `Merge` of branches, each a model or a layer."""
    graph: dict[str, Config] = {}
    inputs: list[list[Any]] = []

    def add(layer: Config, previous: list[str]) -> list[str]:
        if layer["name"] in graph:
            raise Untranslatable(f"share layer {layer['name']!r}, which is not supported", "whose branches")
        graph[layer["name"]] = {**layer, "inbound_nodes": [[[name, 0, 0] for name in previous]] if previous else []}
        return [layer["name"]]

    def chain(items: list[Config]) -> list[str]:
        first, *rest = [_normalised(item) for item in items]
        if _starts_with_branches([first]):
            branches = [_normalised(branch) for branch in first["config"]["layers"]]
            chains = [b["config"]["layers"] if b["class_name"] == "Sequential" else [b] for b in branches]
            last = add(first, [name for branch in chains for name in chain(branch)])
        else:
            if first["class_name"] != "InputLayer":
                shape = _input_shape(first)
                if shape is None:
                    raise Untranslatable("has no input shape", f"whose branch at layer {first['name']!r}")
                first, rest = _input_of(first, shape), [first, *rest]
            inputs.append([first["name"], 0, 0])
            last = add(first, [])
        for item in rest:
            last = add(item, last)
        return last

    output = chain(layers)
    return {"layers": [*graph.values()], "input_layers": inputs, "output_layers": [[*output, 0, 0]]}


def _starts_with_branches(layers: list[Config]) -> bool:
    return layers[0]["class_name"] == "Merge" and bool(layers[0]["config"].get("layers"))


def _normalised(item: Mapping[str, Any]) -> Config:
    """Return {"class_name", "config", "name", ...}, with a dict as config.

    Keras 0 had the arguments next to the class, which it called name. The config of a Sequential used to be the list of
    its layers.
    """
    if "class_name" not in item:
        item = {"class_name": item["name"], "config": {**item, "name": item.get("custom_name")}}
    config = item["config"]
    name = item.get("name")
    if isinstance(config, list):
        name = name or (f"sequential_of_{_normalised(config[0])['name']}" if config else None)
        return {**item, "name": name, "config": {"layers": config}}
    return {**item, "name": name or dict(config).get("name")}


def _distinct(items: list[Config]) -> list[Config]:
    """Return layers with unique names; Keras 0 named layers after their classes."""
    layers: list[Config] = []
    taken: set[str] = set()
    for item in map(_normalised, items):
        base = item["name"] or item["class_name"].lower()
        name = next(name for name in (base, *(f"{base}_{n}" for n in range(2, len(items) + 2))) if name not in taken)
        taken.add(name)
        layers.append({**item, "name": name, "config": {**item["config"], "name": name}})
    return layers


def _input_of(layer: Config, shape: list[Any]) -> Config:
    """Return the input layer implied by a layer with an input shape."""
    dtype = layer["config"].get("input_dtype") or layer["config"].get("dtype")
    name = f"{layer['name'] or 'model'}_input"
    dtype = dtype if isinstance(dtype, str) and dtype.startswith(("float", "int", "uint")) else "float32"
    arguments = {"name": name, "batch_input_shape": shape, "dtype": dtype}
    return {"class_name": "InputLayer", "name": name, "config": arguments}


def _input_shape(item: Config) -> list[Any] | None:
    """Return the input shape, with the batch, of a layer or of the first layer of a model."""
    item = _normalised(item)
    config = item["config"]
    if item["class_name"] in MODELS:
        layers = [_normalised(layer) for layer in config["layers"]]
        first = layers[:1] if item["class_name"] == "Sequential" else layers
        return next((shape for layer in first if (shape := _input_shape(layer))), None)
    if (shape := _shape_in(config)) is not None:
        return shape
    return _input_shape(config["layer"]) if item["class_name"] == "Bidirectional" else None


def _shape_in(config: Config) -> list[Any] | None:
    for key in ("batch_input_shape", "batch_shape"):
        if config.get(key) is not None:
            return list(config[key])
    return [None, *config["input_shape"]] if config.get("input_shape") is not None else None


def _is_ref(value: Any) -> bool:
    """Return True for a reference to an output: [layer, call, output], and from Keras 2 on arguments of the call."""
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and all(isinstance(number, int) for number in value[1:3])
    )


def _is_void(value: Any) -> bool:
    """Return True for None, or for a list with None for each input."""
    return value is None or (isinstance(value, list) and all(item is None for item in value))


def _refs(data: Any) -> Iterator[list[Any]]:
    """Yield every output that `data` references, without references among the arguments of calls."""
    if _is_ref(data):
        yield data
    elif isinstance(data, list | dict):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _refs(value)


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _dicts(item)


def _plain(value: Any) -> Any:
    """Return `value` without TensorFlow's wrappers of arrays, tuples and shapes."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("class_name") in {"__tuple__", "TensorShape"}:
        return _plain(value["items"])
    if value.get("type") == "ndarray" and "value" in value:
        return value["value"]
    return {key: _plain(item) for key, item in value.items()}


def _valid(name: str | None) -> str | None:
    """Return a name that Keras 3 accepts."""
    return name.replace("/", "_") if name else None
