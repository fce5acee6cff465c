"""Template of a command: words with placeholders, which are filled for each trial and read by no shell."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnlo_opt.errors import ConfigurationError, did_you_mean

#: the option
COMMAND = "--command"
#: placeholders besides the parameters
ARGS, RANKS, SAVE, CHECKPOINT = "args", "ranks", "save", "checkpoint"
PLACEHOLDERS = (ARGS, "trial", RANKS, "folder", CHECKPOINT, SAVE)
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ARGS = f"{{{ARGS}}}"


@dataclass(frozen=True)
class Template:
    """Command with placeholders.

    >>> Template("train.py --lr={lr} {args}").filled({"lr": 0.1, "name": "a b"}, {})
    ['train.py', '--lr=0.1', '--lr', '0.1', '--name', 'a b']

    Raises:
        ConfigurationError: the text is empty, or no such command.
    """

    text: str

    def __post_init__(self) -> None:
        if not self.words:
            raise ConfigurationError(f"`{COMMAND}` must begin with a program. Received: an empty text.")
        for word in self.words:
            for found in _PART.finditer(word):
                if found[0] in "{}":
                    raise ConfigurationError(
                        f"`{COMMAND}` must have a name between every pair of braces. Received: {word!r}. Write "
                        "`{{` for `{` and `}}` for `}`."
                    )
                if found[1] == ARGS and word != _ARGS:
                    raise ConfigurationError(
                        f"`{_ARGS}` stands for several words, so it must be a word of its own. Received: {word!r}."
                    )

    @cached_property
    def words(self) -> list[str]:
        """Words with their placeholders."""
        try:
            return shlex.split(self.text)
        except ValueError as error:
            raise ConfigurationError(
                f"`{COMMAND}` must be words as a shell reads them. Received: {self.text!r} ({error}). Close the quote."
            ) from None

    @cached_property
    def names(self) -> set[str]:
        """Names of the placeholders."""
        return {name for word in self.words for name in _PART.findall(word) if name}

    def check(self, names: Collection[str], conditional: Collection[str] = ()) -> None:
        """Raise ConfigurationError unless the placeholders are known and name every parameter.

        Args:
            names: of the parameters of the search space.
            conditional: those that some trials do not have.
        """
        known = {*names, *PLACEHOLDERS}
        if unknown := sorted(self.names - known):
            raise ConfigurationError(
                f"`{COMMAND}` must name parameters of the search space, or {', '.join(PLACEHOLDERS)}. Received: "
                f"`{{{unknown[0]}}}`; the parameters are {', '.join(names)}.{did_you_mean(unknown[0], known)} Braces "
                "that mean themselves are written `{{` and `}}`."
            )
        if both := sorted(self.names & {*names} & {*PLACEHOLDERS}):
            raise ConfigurationError(
                f"A placeholder must have one meaning. Received: `{{{both[0]}}}` with a parameter of this name. Rename "
                "the parameter."
            )
        if ARGS in self.names:
            return
        if unnamed := [name for name in names if name not in self.names]:
            raise ConfigurationError(
                f"`{COMMAND}` must name every parameter. Received: {self.text!r}, without `{{{unnamed[0]}}}`. Add it, "
                f"or `{_ARGS}` for all of them."
            )
        if absent := [name for name in names if name in conditional]:
            raise ConfigurationError(
                f"A parameter with a condition is absent from some trials. Received: `{{{absent[0]}}}`. Write "
                f"`{_ARGS}`, which stands for the parameters that a trial has."
            )

    def filled(self, parameters: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
        """Return the words of a trial; `others`: values of the other placeholders."""
        values = {**parameters, **others}

        def fill(part: "re.Match[str]") -> str:
            return part[0][0] if part[1] is None else _text(values[part[1]])

        words = list[str]()
        for word in self.words:
            if word == _ARGS:
                words += [text for name, value in parameters.items() for text in (f"--{name}", _text(value))]
            else:
                words.append(_PART.sub(fill, word))
        return words


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)
