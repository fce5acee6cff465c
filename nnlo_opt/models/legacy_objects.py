"""Translation of the objects that layers hold, for example initializers, from Keras 1 or 2 to Keras 3.

Each function takes the entry of a JSON file, a name or a description by class, and returns the entry of Keras 3's JSON.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

Config = dict[str, Any]


class Untranslatable(ValueError):
    """Error for a layer without counterpart in Keras 3: the sentence `subject` `predicate`.

    Args:
        predicate: reason, beginning with its verb.
        subject: subject of the sentence, if known; a caller may add it.
    """

    def __init__(self, predicate: str, subject: str = "") -> None:
        super().__init__(f"{subject} {predicate}".strip())
        self.predicate: str = predicate
        self.subject: str = subject


def keras_object(class_name: str, config: Config, module: str = "keras.layers") -> Config:
    """Return an object in the form of Keras 3's JSON."""
    return {"module": module, "class_name": class_name, "config": config, "registered_name": None}


def _variance(scale: float, mode: str, distribution: str) -> tuple[str, Config]:
    return "VarianceScaling", {"scale": scale, "mode": mode, "distribution": distribution}


#: initializers by name: of Keras 1 from keras/initializations.py, and of Keras 2 if they have no arguments
INITIALIZERS_BY_NAME: Mapping[str, tuple[str, Config]] = {
    "zero": ("Zeros", {}),
    "zeros": ("Zeros", {}),
    "one": ("Ones", {}),
    "ones": ("Ones", {}),
    "uniform": ("RandomUniform", {"minval": -0.05, "maxval": 0.05}),
    "random_uniform": ("RandomUniform", {"minval": -0.05, "maxval": 0.05}),
    "normal": ("RandomNormal", {"mean": 0.0, "stddev": 0.05}),
    "random_normal": ("RandomNormal", {"mean": 0.0, "stddev": 0.05}),
    "truncated_normal": ("TruncatedNormal", {"mean": 0.0, "stddev": 0.05}),
    "identity": ("Identity", {}),
    "orthogonal": ("Orthogonal", {"gain": 1.1}),
    "lecun_uniform": _variance(1.0, "fan_in", "uniform"),
    "lecun_normal": _variance(1.0, "fan_in", "truncated_normal"),
    "glorot_normal": _variance(1.0, "fan_avg", "untruncated_normal"),
    "glorot_uniform": _variance(1.0, "fan_avg", "uniform"),
    "he_normal": _variance(2.0, "fan_in", "untruncated_normal"),
    "he_uniform": _variance(2.0, "fan_in", "uniform"),
}
#: initializers of Keras 2 by class, with the names of their arguments
_SEEDED = ("GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform", "LecunNormal")
INITIALIZERS: Mapping[str, str] = {
    "Zeros": "",
    "Ones": "",
    "Constant": "value",
    "Identity": "gain",
    "Orthogonal": "gain seed",
    "RandomUniform": "minval maxval seed",
    "RandomNormal": "mean stddev seed",
    "TruncatedNormal": "mean stddev seed",
    "VarianceScaling": "scale mode distribution seed",
    **dict.fromkeys(_SEEDED, "seed"),
}
#: penalties by name, with the factors that a name alone implies; Keras 1 has the name in the description
REGULARIZERS: Mapping[str, Config] = {
    "l1": {"l1": 0.01},
    "l2": {"l2": 0.01},
    "l1_l2": {"l1": 0.01, "l2": 0.01},
    "l1l2": {"l1": 0.01, "l2": 0.01},
    **{name: {} for name in ("L1", "L2", "L1L2", "L1L2Regularizer", "WeightRegularizer", "ActivityRegularizer")},
}
#: constraints by all their names: class, and its arguments by their former names
CONSTRAINTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    **dict.fromkeys(
        ("MaxNorm", "maxnorm", "max_norm"), ("MaxNorm", {"m": "max_value", "max_value": "max_value", "axis": "axis"})
    ),
    **dict.fromkeys(("NonNeg", "nonneg", "non_neg"), ("NonNeg", {})),
    **dict.fromkeys(("UnitNorm", "unitnorm", "unit_norm"), ("UnitNorm", {"axis": "axis"})),
    **dict.fromkeys(
        ("MinMaxNorm", "min_max_norm"),
        (
            "MinMaxNorm",
            {"low": "min_value", "high": "max_value"} | {n: n for n in ("min_value", "max_value", "rate", "axis")},
        ),
    ),
}
_ACTIVATIONS = "linear relu relu6 leaky_relu tanh sigmoid softmax softplus softsign elu selu exponential gelu silu mish"
#: activations that have not changed, and the former names of other activations
ACTIVATIONS: Mapping[str, str] = {
    **{name: name for name in _ACTIVATIONS.split()},
    "swish": "silu",
    "softmax_v2": "softmax",
}
#: clip(0.2 x + 0.5, 0, 1); Keras 3's `hard_sigmoid` is another function, with slope 1/6
HARD_SIGMOID = keras_object(
    "Sequential",
    {
        "name": "hard_sigmoid",
        "layers": [
            keras_object("Rescaling", {"scale": 0.2, "offset": 0.5}),
            keras_object("ReLU", {"max_value": 1.0}),
        ],
    },
    "keras",
)


def initializer(value: Any) -> Config | None:
    """Return an initializer; without a seed of its own it follows the global seed."""
    if value is None:
        return None
    if isinstance(value, str) and value in INITIALIZERS_BY_NAME:
        class_name, config = INITIALIZERS_BY_NAME[value]
        return keras_object(class_name, dict(config), "keras.initializers")
    name, given = _described(value)
    if name not in INITIALIZERS:
        raise Untranslatable(f"has initializer {name!r}, which is none of Keras's own")
    # Further entries are about types (`dtype`), which the model decides.
    config = {key: given[key] for key in INITIALIZERS[name].split() if key in given}
    return keras_object(name, config, "keras.initializers")


def regularizer(value: Any) -> Config | None:
    """Return a penalty on weights or on activities."""
    if value is None:
        return None
    name, given = _described(value)
    if name not in REGULARIZERS:
        raise Untranslatable(f"has regularizer {name!r}, which Keras 3 does not have")
    factors = {**REGULARIZERS[name], **{key: given[key] for key in ("l1", "l2") if given.get(key)}}
    config = {key: float(factors.get(key, 0.0)) for key in ("l1", "l2")}
    return keras_object("L1L2", config, "keras.regularizers") if any(config.values()) else None


def constraint(value: Any) -> Config | None:
    """Return a projection of weights."""
    if value is None:
        return None
    name, given = _described(value)
    if name not in CONSTRAINTS:
        raise Untranslatable(f"has constraint {name!r}, which Keras 3 does not have")
    class_name, renamed = CONSTRAINTS[name]
    config = {renamed[key]: argument for key, argument in given.items() if key in renamed}
    return keras_object(class_name, config, "keras.constraints")


def activation(value: Any, nested: Callable[[Config], Config]) -> str | Config:
    """Return an activation by name, or a layer that serves as activation, which `nested` translates."""
    if isinstance(value, Mapping):
        if value.get("class_name") != "function":
            return nested(dict(value))
        value = value.get("config")
    if value is None:
        return "linear"
    if value == "hard_sigmoid":
        return deepcopy(HARD_SIGMOID)
    if value not in ACTIVATIONS:
        raise Untranslatable(f"has activation {value!r}, which is none of Keras's own")
    return ACTIVATIONS[value]


def _described(value: Any) -> tuple[str, Config]:
    """Return name and arguments of "name", of Keras 1's {"name", **arguments}, or of {"class_name", "config"}."""
    if isinstance(value, str):
        return value, {}
    if "class_name" in value:
        return value["class_name"], value.get("config") or {}
    return value["name"], {key: argument for key, argument in value.items() if key != "name"}
