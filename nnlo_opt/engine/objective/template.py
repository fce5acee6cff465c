"""Template of a command; no shell is involved."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.engine.objective.forms import FORMS, text_of, written

#: placeholders besides the parameters
ARGS, RANKS, SAVE, CHECKPOINT = "args", "ranks", "save", "checkpoint"
PLACEHOLDERS = (ARGS, "trial", RANKS, "folder", CHECKPOINT, SAVE)
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_ARGS, _WORDS = f"{{{ARGS}}}", f"{{{ARGS}:words}}"
#: these two in a text, without the braces that mean themselves
_ARGS_IN, _WORDS_IN = (re.compile(rf"(?<!\{{){re.escape(text)}(?!\}})") for text in (_ARGS, _WORDS))


@dataclass(frozen=True)
class Template:
    """Command with placeholders.

    >>> Template("train.py --rate={lr} {args}").filled({"lr": 0.1, "name": "a b"}, {})
    ['train.py', '--rate=0.1', '--lr=0.1', '--name=a b']
    >>> Template("train.py {lr:words} {amp:flags}").filled({"lr": 0.1, "amp": True}, {})
    ['train.py', '--lr', '0.1', '--amp']
    """

    text: str

    @cached_property
    def words(self) -> list[str]:
        """Words with their placeholders; ConfigurationError if the text is empty or invalid."""
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise ConfigurationError(
                f"`--command` must be words in the syntax of a shell. Received: {self.text!r} ({error}). Close the "
                "quote."
            ) from None
        lone = next((word for word in words if {"{", "}"} & {part[0] for part in _PART.finditer(word)}), None)
        if not words or lone:
            raise ConfigurationError(
                "`--command` must begin with a program, and have a name between every pair of braces. Received: "
                f"{lone or self.text!r}. Write `{{{{` for `{{` and `}}}}` for `}}`."
            )
        return words

    @cached_property
    def names(self) -> set[str]:
        """Names of the placeholders, without their forms."""
        return {_parted(text)[0] for word in self.words for text in _PART.findall(word) if text}

    @property
    def fingerprint_text(self) -> str:
        """The text with `{args}` and `{args:words}` made equal where they give a script the same values.

        `{args}` used to mean `{args:words}`: both resume a run of that time.
        """
        return _WORDS_IN.sub(_ARGS, self.text)

    @classmethod
    def of_first_version(cls, text: str) -> "Template":
        """Return the template of a run of the first version, in which `{args}` meant `{args:words}`."""
        return cls(_ARGS_IN.sub(_WORDS, text))

    @property
    def means_another(self) -> bool:
        """True if the first version interpreted this text differently."""
        return _ARGS_IN.search(self.text) is not None

    def check(self, names: Collection[str], conditional: Collection[str]) -> None:
        """Raise ConfigurationError unless the placeholders are known and name every parameter.

        Args:
            names: names of the parameters of the search space. conditional: those with conditions.
        """
        if cause := self._cause(names, conditional):
            raise ConfigurationError(
                "Placeholders of `--command` must include all parameters of the search space, and may include "
                f"{', '.join(PLACEHOLDERS)}. Received: {cause}."
            )

    def _cause(self, names: Collection[str], conditional: Collection[str]) -> str:
        """Describe what is wrong with the placeholders; empty if nothing is."""
        known = {*names, *PLACEHOLDERS}
        texts = [(word, text) for word in self.words for text in _PART.findall(word) if text]
        for word, text in texts:
            name, forms = _parted(text)
            if name in known and (cause := _cause_of_forms(text, forms)):
                return cause
            if (name == ARGS or forms) and word != f"{{{text}}}":
                return f"{word!r}; `{{{text}}}` stands for several words, and must be a separate word"
            if forms and name in PLACEHOLDERS and name != ARGS:
                return f"`{{{text}}}`; forms are for parameters only. Write `{{{name}}}`"
        for name in sorted(self.names - known):
            return f"`{{{name}}}`.{did_you_mean(name, known)} Literal braces are written `{{{{` and `}}}}`"
        for name in {*names} & {*PLACEHOLDERS}:
            return f"a parameter {name!r}; rename it"
        plain = {text for _, text in texts}
        for name in names if ARGS not in self.names else ():
            if name not in self.names:
                return f"no `{{{name}}}`; add it, or `{_ARGS}` for all parameters of a trial"
            if name in conditional and name in plain:
                return (
                    f"`{{{name}}}`, which some trials do not have; write `{_ARGS}` for all parameters of a trial, or "
                    f"`{{{name}:words}}`"
                )
        return ""

    def filled(self, parameters: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
        """Return the words for a trial; `others`: values of other placeholders."""
        values = {name: text_of(value) for name, value in {**parameters, **others}.items()}

        def fill(part: re.Match[str]) -> str:
            return part[0][0] if part[1] is None else values[part[1]]

        def words_of(word: str) -> list[str]:
            part = _PART.fullmatch(word)
            name, forms = _parted(part[1]) if part is not None and part[1] else ("", ())
            if name != ARGS and not forms:
                return [_PART.sub(fill, word)]
            given = parameters if name == ARGS else {name: parameters[name]} if name in parameters else {}
            return [text for name, value in given.items() for text in written(name, value, forms)]

        return [text for word in self.words for text in words_of(word)]


def _parted(text: str) -> tuple[str, tuple[str, ...]]:
    """Return name and forms of a placeholder."""
    name, colon, forms = text.rpartition(":")
    return (name, tuple(forms.split(","))) if colon else (text, ())


def _cause_of_forms(text: str, forms: Collection[str]) -> str:
    """Describe what is wrong with the forms of a placeholder; empty if nothing is."""
    for form in forms:
        if form not in FORMS:
            hint = did_you_mean(form, FORMS)
            return f"`{{{text}}}`, whose form {form!r} is none of {', '.join(FORMS)}.{hint} Correct it"
        if others := FORMS[form] & {*forms}:
            return f"`{{{text}}}`, whose forms `{form}` and `{min(others)}` exclude each other. Leave out one"
    return ""
