"""Model architectures as JSON text, read without a framework."""

import json
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.legacy_json import is_legacy, no_class, translate

logger = logging.getLogger(__name__)


def read_architecture(text: str, source: str, is_custom: Callable[[str], bool] = no_class) -> dict[str, Any]:
    """Return the architecture from which Keras 3 builds the model, translated if an earlier Keras wrote it.

    `is_custom` returns True for the name of a known class that is not Keras's own.

    Raises:
        ConfigurationError: naming `source`, if `text` is no architecture or has no counterpart in Keras 3.
    """
    try:
        architecture = json.loads(text)
        if isinstance(architecture, str):
            # `to_json` returns text, which many users have encoded as JSON a second time.
            architecture = json.loads(architecture)
    except ValueError as error:
        architecture, what = None, f"no JSON ({error})"
    else:
        what = "JSON without a model's class"
    is_old = is_legacy(architecture)
    if not is_old and not (isinstance(architecture, dict) and "class_name" in architecture):
        raise ConfigurationError(
            f"A model architecture must be a file as `BuildModel` or Keras's `to_json` writes it. "
            f"Received: {source}, {what}. Write it again."
        )
    if not is_old:
        return architecture
    translation = translate(architecture, source, is_custom)
    _announce(translation.version, translation.notes, source)
    return translation.config


@cache
def _announce(version: str, notes: tuple[str, ...], source: str) -> None:
    """Log once that a file is translated, although every trial reads it again."""
    logger.info("%s was written by Keras %s and is translated to Keras 3", source, version)
    for note in notes:
        logger.warning("%s: %s", source, note)
