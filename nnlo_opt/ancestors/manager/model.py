"""Model of a manager: a custom builder, or a JSON architecture."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnlo_opt.app.run.workload.hdf5_check import check_files
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular


class ModelBuilder:
    """Base class of custom models: override `build_model`; an argument of `MPIManager`.

    >>> class Line(ModelBuilder):
    ...     def build_model(self):
    ...         import keras
    ...
    ...         return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    """

    #: True if `build_model` returns an `engine.models.composite.CompositeModel`
    trains_itself = False
    #: framework of the model, keras or torch; None to infer it from the imports of the class
    _framework: str | None = None

    def __init__(self, comm: Any = None) -> None:
        """`comm` is stored but not used."""
        self.comm = comm

    def build_model(self) -> Any:
        """Return a Keras model, compiled or not, or a torch module; called on every worker."""
        raise ConfigurationError(
            f"A model builder must override `build_model`. Received: {type(self).__name__}, which does not."
        )

    def get_backend_name(self) -> str | None:
        """Return the framework to import before `build_model`, keras or torch; None to infer it from imports."""
        return self._framework


class ModelFromJson(ModelBuilder):
    """Keras model from the output of `to_json` of any Keras (1, 2, 3).

    >>> text = Line().build_model().to_json()
    >>> ModelFromJson(json_str=text).build_model().count_params()
    3
    """

    _framework = "keras"

    def __init__(
        self,
        comm: Any = None,
        filename: str | Path | None = None,
        json_str: str | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        weights: str | Path | None = None,
    ) -> None:
        """Check all arguments.

        Args:
            comm: communicator; stored but not used.
            filename: file of the architecture.
            json_str: text of the architecture, instead of `filename`.
            custom_objects: layers and functions of the model that are not Keras's own, by name.
            weights: file of initial weights written by Keras. Files of Keras 1 or 2 are first read in another process,
                because damaged ones may crash it.
        """
        super().__init__(comm)
        if (filename is None) == (json_str is None):
            raise ConfigurationError("ModelFromJson needs `filename` or `json_str`, and not both.")
        if filename is not None and not os.path.isfile(filename):
            raise ConfigurationError(
                f"`filename` of ModelFromJson must be a file. Received: {str(filename)!r}, which is none."
            )
        self.filename = filename
        self.json_str = json_str
        self.custom_objects = dict(custom_objects or {})
        self.weights = weights
        self._is_of_keras_3 = str(weights).endswith((".weights.h5", ".keras"))
        if weights is not None and not self._is_of_keras_3:
            check_files((), (), [Path(weights)], external=False)

    def build_model(self) -> Any:
        from nnlo_opt.engine.models.keras.framework import building, model_from_architecture
        from nnlo_opt.engine.models.legacy.weights import load_legacy_weights

        if self.filename is None:
            text, source = self.json_str or "", "json_str"
        else:
            text, source = Path(self.filename).read_text(errors="replace"), str(self.filename)
        with building(self.custom_objects, None):
            model = model_from_architecture(text, source)
        if self.weights is None:
            return model
        if self._is_of_keras_3:
            try:
                model.load_weights(str(regular(Path(self.weights))))
            except Exception as error:
                reason = str(error).splitlines()[0].rstrip(".")
                raise ConfigurationError(f"The weights in {self.weights} do not fit {source}: {reason}.") from error
        else:
            load_legacy_weights(model, Path(self.weights))
        return model
