"""Forms of parameters on a command line, for the parsers of users' scripts."""

import re
from collections.abc import Sequence
from typing import Any

#: form -> forms that it excludes
FORMS: dict[str, set[str]] = {
    "words": {"hydra"},  # `--name value`
    "hydra": {"words", "flags", "no-flags", "lists", "repeat"},  # `name=value`
    "flags": {"hydra", "no-flags"},  # `--name` for True, nothing for False
    "no-flags": {"hydra", "flags"},  # `--name` for True, `--no-name` for False
    "lists": {"hydra", "repeat"},  # `--name` and each value of a list as a word
    "repeat": {"hydra", "lists"},  # `--name=value` for each value of a list
    "optional": set(),  # nothing for None
}
#: text that hydra reads unchanged without quotes
_PLAIN = re.compile(r"[A-Za-z_/$*@?|.-][\w/$*@?|.+-]*", re.ASCII)
#: text that hydra would not read as a string
_OTHER = re.compile(r"true|false|null|[+-]?(\.?\d.*|inf|nan)", re.IGNORECASE)


def written(name: str, value: Any, forms: Sequence[str] = ()) -> list[str]:
    """Return the command line words for a parameter; `--name=value` without any of `FORMS`.

    >>> written("amp", True, ["no-flags"]), written("layers", [64, 32], ["lists"])
    (['--amp'], ['--layers', '64', '32'])
    """
    if value is None and "optional" in forms:
        return []
    if "hydra" in forms:
        return [f"{name}={_for_hydra(value)}"]
    if isinstance(value, bool) and "flags" in forms:
        return [f"--{name}"] * value
    if isinstance(value, bool) and "no-flags" in forms:
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list) and "lists" in forms:
        return [f"--{name}", *map(text_of, value)]
    if isinstance(value, list) and "repeat" in forms:
        return [word for item in value for word in _pair(name, item, forms)]
    return _pair(name, value, forms)


def text_of(value: Any) -> str:
    """Return the text of a value, which Python parses back to the same value."""
    return repr(value) if isinstance(value, float) else str(value)


def _pair(name: str, value: Any, forms: Sequence[str]) -> list[str]:
    return [f"--{name}", text_of(value)] if "words" in forms else [f"--{name}={text_of(value)}"]


def _for_hydra(value: Any) -> str:
    """Return the text of a value for hydra, and in most cases OmegaConf."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_for_hydra, value))}]"
    if not isinstance(value, str):
        return text_of(value)
    if _PLAIN.fullmatch(value) and not _OTHER.fullmatch(value):
        return value
    # A backslash is doubled only before a quote.
    escaped = re.sub(r"(\\+)$", r"\1\1", re.sub(r"(\\*)'", r"\1\1\\'", value))
    return f"'{escaped}'"
