"""Template of a command, whose words no shell reads."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnlo_opt.errors import ConfigurationError, did_you_mean

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
    """

    text: str

    @cached_property
    def words(self) -> list[str]:
        """Words with their placeholders; ConfigurationError if there are none, or wrong ones."""
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise ConfigurationError(
                f"`--command` must be words as a shell reads them. Received: {self.text!r} ({error}). Close the quote."
            ) from None
        lone = next((word for word in words if {"{", "}"} & {part[0] for part in _PART.finditer(word)}), None)
        if not words or lone:
            raise ConfigurationError(
                "`--command` must have a program, and a name between every pair of braces. Received: "
                f"{lone or self.text!r}. Write `{{{{` for `{{` and `}}}}` for `}}`."
            )
        return words

    @cached_property
    def names(self) -> set[str]:
        """Names of the placeholders."""
        return {name for word in self.words for name in _PART.findall(word) if name}

    def check(self, names: Collection[str], conditional: Collection[str]) -> None:
        """Raise ConfigurationError unless the placeholders are known and name every parameter.

        Args:
            names: of the parameters of the search space.
            conditional: those that some trials do not have.
        """
        if cause := self._cause(names, conditional):
            raise ConfigurationError(
                "Placeholders of `--command` must be all parameters of the search space, and may be "
                f"{', '.join(PLACEHOLDERS)}. Received: {cause}."
            )

    def _cause(self, names: Collection[str], conditional: Collection[str]) -> str:
        """Return what is wrong with the placeholders; empty if nothing is."""
        known = {*names, *PLACEHOLDERS}
        for name in sorted(self.names - known):
            return f"`{{{name}}}`.{did_you_mean(name, known)} Braces that mean themselves are written `{{{{` and `}}}}`"
        for name in {*names} & {*PLACEHOLDERS}:
            return f"a parameter {name!r}; rename it"
        for word in self.words:
            if ARGS in _PART.findall(word) and word != _ARGS:
                return f"{word!r}; `{_ARGS}` stands for several words, and must be a word of its own"
        for name in names if ARGS not in self.names else ():
            if name not in self.names:
                return f"no `{{{name}}}`; add it, or `{_ARGS}` for all parameters of a trial"
            if name in conditional:
                return f"`{{{name}}}`, which some trials do not have; write `{_ARGS}` for all parameters of a trial"
        return ""

    def filled(self, parameters: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
        """Return the words of a trial; `others`: values of the other placeholders."""
        values = {name: repr(v) if isinstance(v, float) else str(v) for name, v in {**parameters, **others}.items()}

        def fill(part: re.Match[str]) -> str:
            return part[0][0] if part[1] is None else values[part[1]]

        args = [text for name in parameters for text in (f"--{name}", values[name])]
        parts = (args if word == _ARGS else [_PART.sub(fill, word)] for word in self.words)
        return [text for part in parts for text in part]
