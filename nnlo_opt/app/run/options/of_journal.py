"""Filters options from a journal, which anyone who may write to a run can change: their code is not executed.

All options pass through here; `names_code` of an option's kind tells whether a value refers to code. Only the file of a
model may be executed, guarded by `user_files.own_files`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nnlo_opt.app.run.options.table import BY_NAME
from nnlo_opt.core.base.errors import ConfigurationError

#: options of the model, whose file must belong to this user and match the checksum in the journal
GUARDED = ("model", "example")


def names_code(name: str, value: object) -> bool:
    """Return True if the value of a driver's option refers to code."""
    option = BY_NAME.get(name)
    return option is not None and value is not None and option.kind.names_code(value)


def without_code(of_journal: Mapping[str, Any], run: Path, needed: Collection[str] = ()) -> dict[str, Any]:
    """Return options of a journal without those that refer to code, except the model.

    Args:
        of_journal: name -> text of options, without those given by the user.
        run: run with this journal.
        needed: options that cannot be left out.

    Raises:
        ConfigurationError: one of `needed` refers to code.
    """
    named = [name for name, value in of_journal.items() if name not in GUARDED and names_code(name, value)]
    for name in named:
        if name in needed:
            flag, value = BY_NAME[name].flag, of_journal[name]
            raise ConfigurationError(
                f"Code that only a journal names is not executed. Received: `{flag} {value}` of `{run}`. Look at the "
                f"file, then name it again by `{flag} FILE.py:CLASS`."
            )
    return {name: value for name, value in of_journal.items() if name not in named}
