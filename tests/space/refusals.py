"""How a refusal is checked."""

import pytest

from nnlo_opt.errors import ConfigurationError


def check_refused(words, call, *arguments):
    """Check that a call is refused by one sentence with these words, which is returned."""
    with pytest.raises(ConfigurationError) as error:
        call(*arguments)
    sentence = str(error.value)
    assert words in sentence
    assert "\n" not in sentence
    return sentence
