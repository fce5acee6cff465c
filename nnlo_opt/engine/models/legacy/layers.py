"""Translation of single layers from Keras 1 or 2 to Keras 3, by tables of names without a framework.

No name has different meanings in Keras 1 and 2, so one set of tables reads both, regardless of the version stated in
the file. A layer without counterpart in Keras 3 is refused (`Untranslatable`), never guessed; code in a file is never
run. Sources: the constructors of Keras 1.0.8, 1.2.2, 2.0.8, 2.1.6, 2.2.5 and 2.15, and `keras/legacy/interfaces.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

Config = dict[str, Any]


class Untranslatable(ValueError):
    """A layer has no counterpart in Keras 3. The message is a sentence of `subject` and `predicate`.

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


# ---------------------------------------------------------------- objects that layers hold


def _variance(scale: float, mode: str, distribution: str) -> tuple[str, Config]:
    return "VarianceScaling", {"scale": scale, "mode": mode, "distribution": distribution}


#: initializers by name: of Keras 1 from keras/initializations.py, and of Keras 2 if they have no arguments
INITIALIZERS_BY_NAME: Mapping[str, tuple[str, Config]] = {
    **dict.fromkeys(("zero", "zeros"), ("Zeros", {})),
    **dict.fromkeys(("one", "ones"), ("Ones", {})),
    **dict.fromkeys(("uniform", "random_uniform"), ("RandomUniform", {"minval": -0.05, "maxval": 0.05})),
    **dict.fromkeys(("normal", "random_normal"), ("RandomNormal", {"mean": 0.0, "stddev": 0.05})),
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
# fmt: off
INITIALIZERS: Mapping[str, str] = {
    "Zeros": "", "Ones": "", "Constant": "value", "Identity": "gain", "Orthogonal": "gain seed",
    "RandomUniform": "minval maxval seed", "RandomNormal": "mean stddev seed", "TruncatedNormal": "mean stddev seed",
    "VarianceScaling": "scale mode distribution seed", **dict.fromkeys(_SEEDED, "seed"),
}
#: penalties by name, with the factors that a name alone implies; Keras 1 has the name in the description
REGULARIZERS: Mapping[str, Config] = {
    "l1": {"l1": 0.01}, "l2": {"l2": 0.01}, "l1_l2": {"l1": 0.01, "l2": 0.01}, "l1l2": {"l1": 0.01, "l2": 0.01},
    **{name: {} for name in ("L1", "L2", "L1L2", "L1L2Regularizer", "WeightRegularizer", "ActivityRegularizer")},
}
#: constraints by class, with the names of their arguments
CONSTRAINTS: Mapping[str, str] = {
    "MaxNorm": "max_value axis", "NonNeg": "", "UnitNorm": "axis", "MinMaxNorm": "min_value max_value rate axis",
}
# fmt: on
#: former names of arguments of constraints
RENAMED_IN_CONSTRAINTS: Mapping[str, str] = {"m": "max_value", "low": "min_value", "high": "max_value"}
_ACTIVATIONS = "linear relu relu6 leaky_relu tanh sigmoid softmax softplus softsign elu selu exponential gelu silu mish"
#: activations that have not changed, and the former names of other activations
ACTIVATIONS = {**{name: name for name in _ACTIVATIONS.split()}, "swish": "silu", "softmax_v2": "softmax"}
#: clip(0.2 x + 0.5, 0, 1); Keras 3's `hard_sigmoid` is another function, with slope 1/6
_HARD = [keras_object("Rescaling", {"scale": 0.2, "offset": 0.5}), keras_object("ReLU", {"max_value": 1.0})]
HARD_SIGMOID = keras_object("Sequential", {"name": "hard_sigmoid", "layers": _HARD}, "keras")


def _initializer(name: str, given: Config) -> Config:
    """Return an initializer; without a seed it follows the global seed."""
    if name in INITIALIZERS_BY_NAME:
        class_name, config = INITIALIZERS_BY_NAME[name]
        return keras_object(class_name, dict(config), "keras.initializers")
    if name not in INITIALIZERS:
        raise Untranslatable(f"has initializer {name!r}, which is not one of Keras's")
    # Drop other entries: they set types (`dtype`), which the model decides.
    return keras_object(name, _selected(given, INITIALIZERS[name]), "keras.initializers")


def _regularizer(name: str, given: Config) -> Config | None:
    """Return a penalty on weights or on activities; None for a penalty of nothing."""
    if name not in REGULARIZERS:
        raise Untranslatable(f"has regularizer {name!r}, which Keras 3 does not have")
    factors = {**REGULARIZERS[name], **{key: given[key] for key in ("l1", "l2") if given.get(key)}}
    config = {key: float(factors.get(key, 0.0)) for key in ("l1", "l2")}
    return keras_object("L1L2", config, "keras.regularizers") if any(config.values()) else None


def _constraint(name: str, given: Config) -> Config:
    """Return a weight constraint; its name is the class, possibly in lower case."""
    class_name = {known.lower(): known for known in CONSTRAINTS}.get(name.lower().replace("_", ""))
    if class_name is None:
        raise Untranslatable(f"has constraint {name!r}, which Keras 3 does not have")
    renamed = {RENAMED_IN_CONSTRAINTS.get(key, key): value for key, value in given.items()}
    return keras_object(class_name, _selected(renamed, CONSTRAINTS[class_name]), "keras.constraints")


def _selected(given: Config, names: str) -> Config:
    return {name: given[name] for name in names.split() if name in given}


def _activation(value: Any, nested: Callable[[Config], Config]) -> str | Config:
    """Return an activation by name, or a layer used as activation, translated by `nested`."""
    if isinstance(value, Mapping):
        if value.get("class_name") != "function":
            return nested(dict(value))
        value = value.get("config")
    if value is None:
        return "linear"
    if value == "hard_sigmoid":
        return deepcopy(HARD_SIGMOID)
    if value not in ACTIVATIONS:
        raise Untranslatable(f"has activation {value!r}, which is not one of Keras's")
    return ACTIVATIONS[value]


def _described(value: Any) -> tuple[str, Config]:
    """Return name and arguments of "name", of Keras 1's {"name", **arguments}, or of {"class_name", "config"}."""
    if isinstance(value, str):
        return value, {}
    if "class_name" in value:
        return value["class_name"], value.get("config") or {}
    return value["name"], {key: argument for key, argument in value.items() if key != "name"}


# ---------------------------------------------------------------- layers


def _with(names: str, *owners: str) -> frozenset[str]:
    """Return `names` with the initializer, the regularizer and the constraint of each owner of weights."""
    parts = ("initializer", "regularizer", "constraint")
    return frozenset([*names.split(), *(f"{owner}_{part}" for owner in owners for part in parts)])


_CONV = "filters kernel_size strides padding data_format dilation_rate activation use_bias activity_regularizer"
_DEPTHWISE = "kernel_size strides padding depth_multiplier data_format dilation_rate activation use_bias"
_CELL = "units activation use_bias dropout recurrent_dropout seed"
_LOOP = "return_sequences return_state go_backwards stateful"
_GATES = ("kernel", "recurrent", "bias")
_IMAGE = "fill_mode interpolation fill_value seed"
# fmt: off
_FAMILIES: Mapping[str, frozenset[str]] = {
    "Conv1D Conv2D Conv3D": _with(f"{_CONV} groups", "kernel", "bias"),
    "Conv1DTranspose Conv2DTranspose Conv3DTranspose": _with(f"{_CONV} output_padding", "kernel", "bias"),
    "SeparableConv1D SeparableConv2D": _with(f"{_CONV} depth_multiplier", "depthwise", "pointwise", "bias"),
    "DepthwiseConv1D DepthwiseConv2D": _with(f"{_DEPTHWISE} activity_regularizer", "depthwise", "bias"),
    "ConvLSTM1D ConvLSTM2D ConvLSTM3D":
        _with(f"{_CONV} recurrent_activation unit_forget_bias dropout recurrent_dropout seed {_LOOP}", *_GATES),
    "SimpleRNN": _with(f"{_CELL} {_LOOP} unroll activity_regularizer", *_GATES),
    "LSTM": _with(f"{_CELL} {_LOOP} unroll activity_regularizer recurrent_activation unit_forget_bias", *_GATES),
    "GRU": _with(f"{_CELL} {_LOOP} unroll activity_regularizer recurrent_activation reset_after", *_GATES),
    "SimpleRNNCell": _with(_CELL, *_GATES),
    "LSTMCell": _with(f"{_CELL} recurrent_activation unit_forget_bias", *_GATES),
    "GRUCell": _with(f"{_CELL} recurrent_activation reset_after", *_GATES),
    "RNN": _with(f"cell {_LOOP} unroll zero_output_for_mask"), "StackedRNNCells": _with("cells"),
    "Bidirectional": _with("layer backward_layer merge_mode"), "TimeDistributed": _with("layer"),
    "Dense": _with("units activation use_bias activity_regularizer", "kernel", "bias"),
    "EinsumDense": _with("equation output_shape activation bias_axes activity_regularizer", "kernel", "bias"),
    "Embedding": _with("input_dim output_dim mask_zero activity_regularizer", "embeddings"),
    "BatchNormalization":
        _with("axis momentum epsilon center scale moving_mean_initializer moving_variance_initializer",
              "beta", "gamma"),
    "LayerNormalization": _with("axis epsilon center scale", "beta", "gamma"),
    "GroupNormalization": _with("groups axis epsilon center scale", "beta", "gamma"),
    "UnitNormalization Softmax Concatenate": _with("axis"),
    "Add Subtract Multiply Average Maximum Minimum Identity": _with(""), "Dot": _with("axes normalize"),
    "Attention": _with("use_scale score_mode dropout seed"), "AdditiveAttention": _with("use_scale dropout"),
    "MultiHeadAttention":
        _with("num_heads key_dim value_dim dropout use_bias output_shape attention_axes activity_regularizer seed",
              "kernel", "bias"),
    "Activation": _with("activation activity_regularizer"), "ActivityRegularization": _with("l1 l2"),
    "PReLU": _with("shared_axes", "alpha"), "LeakyReLU": _with("negative_slope"),
    "ReLU": _with("max_value negative_slope threshold"), "ELU": _with("alpha"),
    "Dropout AlphaDropout": _with("rate noise_shape seed"), "SpatialDropout1D": _with("rate seed"),
    "SpatialDropout2D SpatialDropout3D": _with("rate data_format seed"), "GaussianDropout": _with("rate seed"),
    "GaussianNoise": _with("stddev seed"),
    "MaxPooling1D MaxPooling2D MaxPooling3D": _with("pool_size strides padding data_format"),
    "AveragePooling1D AveragePooling2D AveragePooling3D": _with("pool_size strides padding data_format"),
    "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D": _with("data_format keepdims"),
    "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D": _with("data_format keepdims"),
    "UpSampling1D": _with("size"), "UpSampling2D": _with("size data_format interpolation"),
    "UpSampling3D": _with("size data_format"),
    "ZeroPadding1D ZeroPadding2D ZeroPadding3D": _with("padding data_format"), "Cropping1D": _with("cropping"),
    "Cropping2D Cropping3D": _with("cropping data_format"), "Flatten": _with("data_format"),
    "Reshape": _with("target_shape"), "Permute": _with("dims"), "RepeatVector": _with("n"),
    "Masking": _with("mask_value"), "Rescaling": _with("scale offset"),
    "Normalization": _with("axis mean variance invert"),
    "Resizing": _with("height width interpolation crop_to_aspect_ratio"), "CenterCrop": _with("height width"),
    "RandomCrop": _with("height width seed"), "RandomFlip": _with("mode seed"), "RandomContrast": _with("factor seed"),
    "RandomBrightness": _with("factor value_range seed"), "RandomRotation": _with(f"factor {_IMAGE}"),
    "RandomZoom RandomTranslation": _with(f"height_factor width_factor {_IMAGE}"),
}
# fmt: on
#: arguments of each layer of Keras 3, by its name
ARGUMENTS: Mapping[str, frozenset[str]] = {name: _FAMILIES[names] for names in _FAMILIES for name in names.split()}
#: layers that can be frozen
WITH_WEIGHTS = frozenset(
    {"TimeDistributed", "Bidirectional", "RNN"}
    | {name for name, arguments in ARGUMENTS.items() if any(word.endswith("_initializer") for word in arguments)}
)
#: layers of images; Keras 1 left their data format out of some files that state it for other layers
OF_IMAGES = frozenset(name for name in ARGUMENTS if "data_format" in ARGUMENTS[name] and name.endswith(("2D", "3D")))
#: layers that process a sequence step by step, and take their initial state as further inputs
RECURRENT = frozenset({"SimpleRNN", "LSTM", "GRU", "RNN", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"})
#: layers that take a list even for one input
MERGING = frozenset({"Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"})

#: former names of layers
CLASSES: Mapping[str, str] = {
    **{f"Convolution{n}D": f"Conv{n}D" for n in (1, 2, 3)},
    **{f"AtrousConvolution{n}D": f"Conv{n}D" for n in (1, 2)},
    **{f"SeparableConvolution{n}D": f"SeparableConv{n}D" for n in (1, 2)},
    **{f"{old}{n}D": f"Conv{n}DTranspose" for old in ("Deconvolution", "Deconv") for n in (2, 3)},
    **{f"MaxPool{n}D": f"MaxPooling{n}D" for n in (1, 2, 3)},
    **dict.fromkeys(("BatchNormalizationV1", "BatchNormalizationV2", "SyncBatchNormalization"), "BatchNormalization"),
    "CuDNNGRU": "GRU",
    "CuDNNLSTM": "LSTM",
    "ThresholdedReLU": "ReLU",
    "TimeDistributedDense": "Dense",
}
#: arguments implied by a class: its former defaults if missing in the file, or the meaning of a former name
IMPLIED: Mapping[str, Config] = {
    **{name: {"reset_after": False} for name in ("GRU", "GRUCell")},
    "CuDNNGRU": {"activation": "tanh", "recurrent_activation": "sigmoid", "reset_after": True},
    "CuDNNLSTM": {"activation": "tanh", "recurrent_activation": "sigmoid"},
}

# fmt: off
#: modes of Keras 1's `Merge`: the layer, and its arguments
MERGES: Mapping[str, tuple[str, str]] = {
    "sum": ("Add", ""), "mul": ("Multiply", ""), "ave": ("Average", ""), "max": ("Maximum", ""),
    "concat": ("Concatenate", "axis"), "dot": ("Dot", "axes"), "cos": ("Dot", "axes normalize"),
}

#: former names of arguments, in any layer without its own entry in `RENAMED_IN`
RENAMED: Mapping[str, str] = {
    "output_dim": "units", "nb_filter": "filters", "filter_length": "kernel_size", "subsample": "strides",
    "subsample_length": "strides", "stride": "strides", "pool_length": "pool_size", "length": "size",
    "border_mode": "padding", "dim_ordering": "data_format", "atrous_rate": "dilation_rate", "bias": "use_bias",
    "init": "kernel_initializer", "inner_init": "recurrent_initializer", "inner_activation": "recurrent_activation",
    "forget_bias_init": "unit_forget_bias", "W_regularizer": "kernel_regularizer",
    "U_regularizer": "recurrent_regularizer", "b_regularizer": "bias_regularizer", "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint", "dropout_W": "dropout", "dropout_U": "recurrent_dropout",
    "gamma_init": "gamma_initializer", "beta_init": "beta_initializer", "p": "rate", "sigma": "stddev",
}
RENAMED_IN: Mapping[str, Mapping[str, str]] = {
    "Embedding": {"output_dim": "output_dim", "init": "embeddings_initializer",
                  "W_regularizer": "embeddings_regularizer", "W_constraint": "embeddings_constraint"},
    "PReLU": {"init": "alpha_initializer"},
    "LeakyReLU": {"alpha": "negative_slope"},
    "ReLU": {"theta": "threshold"},
    **{f"SeparableConv{n}D": {"init": "depthwise_initializer"} for n in (1, 2)},
}
# fmt: on
#: sizes that used to be several arguments
GATHERED: Mapping[tuple[str, ...], str] = {
    ("nb_row", "nb_col"): "kernel_size",
    ("kernel_dim1", "kernel_dim2", "kernel_dim3"): "kernel_size",
}

_IGNORED = (
    "name trainable dtype input_dtype autocast batch_input_shape input_shape input_dim input_length consume_less "
    "implementation fused virtual_batch_size renorm_clipping renorm_momentum synchronized cache_enabled "
    "create_input_layer custom_name weights query_shape key_shape value_shape output_shape"
)
#: arguments about how to compute, or that Keras 3 gets from elsewhere; none changes a result
IGNORED = frozenset(_IGNORED.split())
#: inherited arguments of TensorFlow's Keras, with the values that change nothing
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "groups": (1,),
    "dilation_rate": (1, [1], [1, 1], [1, 1, 1]),
    "data_format": ("channels_last",),
}
#: dispensable arguments without a counterpart (None: any value), and what is lost without them
LOST: Mapping[tuple[str, str, Any], str] = {
    ("BatchNormalization", "mode", 2): "evaluates with its moving averages, not with those of the batch",
    ("Embedding", "dropout", None): "drops no words",
}

_NO_COUNTERPART = "which Keras 3 does not have"
_GONE = ("LocallyConnected1D", "LocallyConnected2D", "Highway", "MaxoutDense", "ParametricSoftplus", "SReLU")
_FUNCTION = "a function of TensorFlow's, which Keras 3 does not take from a file"
#: layers that cannot be translated from a file, with the reason
REFUSED: Mapping[str, str] = {
    "Lambda": "whose code is compiled into the file and is not run from there",
    **dict.fromkeys(("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer"), _FUNCTION),
    **dict.fromkeys(_GONE, _NO_COUNTERPART),
}


def translate_layer(class_name: str, config: Config, nested: Callable[[Config], Config], notes: set[str]) -> Config:
    """Translate a layer (not a model or an input) to Keras 3, without its name.

    Args:
        class_name: class of the layer in the file.
        config: arguments of the layer in the file.
        nested: translates inner layers.
        notes: set that receives what the translation loses.

    Raises:
        Untranslatable: if Keras 3 has no counterpart.
    """
    if class_name in REFUSED:
        raise Untranslatable(f"is a {class_name}, {REFUSED[class_name]}")
    new_class = CLASSES.get(class_name, class_name)
    if class_name == "Merge":
        new_class, config = _merge(config)
    if new_class not in ARGUMENTS:
        raise Untranslatable(f"is a {class_name}, which is not one of Keras's layers")
    renamed = {**RENAMED, **RENAMED_IN.get(new_class, {})}
    result = dict(IMPLIED.get(class_name, {}))
    for old, value in _gathered(config).items():
        name = renamed.get(old, old)
        if name in ARGUMENTS[new_class]:
            result[name] = _convert(new_class, name, value, nested)
        elif not _says_nothing(new_class, old, value):
            lost = next((LOST[key] for key in LOST if key[:2] == (new_class, old) and key[2] in (None, value)), None)
            if lost is None:
                raise Untranslatable(f"is a {class_name} with {old}={value!r}, {_NO_COUNTERPART}")
            notes.add(f"{new_class} with {old}={value!r} {lost}")
    if config.get("trainable") is False and new_class in WITH_WEIGHTS:
        result["trainable"] = False
    return keras_object(new_class, result)


def _says_nothing(owner: str, argument: str, value: Any) -> bool:
    """Return True if layer class `owner` of Keras 3 gives the same result without this argument."""
    if "depthwise_initializer" in ARGUMENTS[owner] and argument.startswith("kernel_"):
        return True  # inherited as well, and never used
    return not value or argument in IGNORED or value in NEUTRAL.get(argument, ())


def _merge(config: Config) -> tuple[str, Config]:
    """Return class and config for a `Merge` of Keras 1."""
    mode = config.get("mode", "sum")
    if config.get("mode_type", "raw") != "raw" or mode not in MERGES:
        raise Untranslatable("is a Merge by a function, whose code is not run from a file")
    class_name, arguments = MERGES[mode]
    axes = config.get("dot_axes", -1)
    # Keras 1.0 had a list of axes for each input.
    axes = [axis[0] if isinstance(axis, list) else axis for axis in axes] if isinstance(axes, list) else axes
    values = {"axis": config.get("concat_axis", -1), "axes": axes, "normalize": mode == "cos"}
    return class_name, {key: values[key] for key in arguments.split()}


def _gathered(config: Config) -> Config:
    """Return `config` with one size in place of Keras 1's argument for each dimension."""
    result = dict(config)
    for names, gathered in GATHERED.items():
        if names[0] in result:
            result[gathered] = [result.pop(name) for name in names]
    return result


def _convert(owner: str, name: str, value: Any, nested: Callable[[Config], Config]) -> Any:
    """Return the value of argument `name` of layer class `owner` in the form of Keras 3."""
    kind = name.rpartition("_")[2]
    if kind in _OBJECTS:
        return None if value is None else _OBJECTS[kind](*_described(value))
    if kind == "activation":
        return _activation(value, nested)
    if name in {"layer", "backward_layer", "cell"}:
        return None if value is None else nested(value)
    if name == "cells":
        return [nested(cell) for cell in value]
    convert = _VALUES.get(f"{owner}.{name}") or _VALUES.get(name)
    return convert(value) if convert else value


def _border(value: str) -> str:
    if value not in {"valid", "same", "causal"}:
        raise Untranslatable(f"has border mode {value!r}, which only Theano had")
    return value


def _margins(sides: tuple[str, ...]) -> Callable[[Any], Any]:
    """Return a converter to pairs of margins; Keras 1 also had a dict by side or one list of all sides."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            value = [value.get(f"{side}_pad", 0) for side in sides]
        return [value[:2], value[2:]] if isinstance(value, list) and len(value) == 4 else value

    return convert


_OBJECTS: Mapping[str, Callable[[str, Config], Config | None]] = {
    "initializer": _initializer,
    "regularizer": _regularizer,
    "constraint": _constraint,
}
_DATA_FORMATS = {"th": "channels_first", "tf": "channels_last", None: "channels_last"}
#: conversions of values of other arguments, by argument, or by layer and argument
_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "axis": lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value,
    "data_format": lambda value: _DATA_FORMATS.get(value, value),
    "unit_forget_bias": lambda value: value if isinstance(value, bool) else value == "one",
    "padding": _border,
    # Some files have the rate as text.
    "rate": float,
    "ZeroPadding1D.padding": _margins(("left", "right")),
    "ZeroPadding2D.padding": _margins(("top", "bottom", "left", "right")),
    "ZeroPadding3D.padding": lambda value: value,
}
