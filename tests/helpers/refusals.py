"""How a refusal is checked."""

import pytest

from nnlo_opt.core.base.errors import ConfigurationError


def check_refused(words, call, *arguments, **keywords):
    """Check that a call is refused by one sentence with these words, which is returned."""
    with pytest.raises(ConfigurationError) as error:
        call(*arguments, **keywords)
    sentence = str(error.value)
    assert words in sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


def refusal(call, *arguments, says=(), **keywords):
    """Return the sentence with which a call is refused: it tells what was received, and has all parts of `says`."""
    sentence = check_refused("Received: ", call, *arguments, **keywords)
    assert not [part for part in says if part not in sentence], sentence
    return sentence
