"""Sentences with which wrong requests are refused."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nnlo_opt.errors import ConfigurationError


def refusal(function: Callable[..., Any], *arguments: Any, says: Sequence[str] = (), **keywords: Any) -> str:
    """Return the sentence with which a call is refused: one line, with what was received and the parts in `says`."""
    with pytest.raises(ConfigurationError) as caught:
        function(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    assert not [part for part in ("Received: ", *says) if part not in message], message
    return message
