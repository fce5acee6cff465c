"""Model architectures as JSON text, looked at without a framework."""

import json

from nnlo_opt.errors import ConfigurationError


def check_architecture(text: str, source: str) -> None:
    """Raise `ConfigurationError`, naming `source`, unless `text` looks like what Keras 3's `to_json` writes."""
    try:
        architecture = json.loads(text)
    except ValueError as error:
        architecture, what = None, f"no JSON ({error})"
    else:
        what = "JSON without a model's class"
    if not isinstance(architecture, dict) or "class_name" not in architecture:
        raise ConfigurationError(
            f"A model architecture must be a file as `BuildModel` or Keras's `to_json` writes it. "
            f"Received: {source}, {what}. Write it again."
        )
    if "module" not in architecture:
        version = architecture.get("keras_version", "1 or 2")
        raise ConfigurationError(
            f"A model architecture must be written by Keras 3. Received: {source}, written by Keras {version}, which "
            "Keras 3 cannot read. Write it again with Keras 3, or build the model in a module with `get_model`."
        )
