"""Options that a journal names. Whoever may write to a run may change them: no code that they name is executed.

This is the one gate for all options; `names_code` of its kind says whether a value names code. Only the file of a model
may be executed, under the guard of `user_files.own_files`.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nnlo_opt.app.run.options.table import BY_NAME
from nnlo_opt.core.base.errors import ConfigurationError

#: name the model, whose file must be this user's own, with the checksum of the journal
GUARDED = ("model", "example")


def names_code(name: str, value: object) -> bool:
    """Return True if the value of an option of a driver names code."""
    option = BY_NAME.get(name)
    return option is not None and value is not None and option.kind.names_code(value)


def without_code(of_journal: Mapping[str, Any], run: Path, needed: Collection[str] = ()) -> dict[str, Any]:
    """Return options of a journal without those that name code, but for the model.

    Args:
        of_journal: texts by the names of options, without those that the user has given.
        run: whose journal it is.
        needed: options without whose code there is no result.

    Raises:
        ConfigurationError: one of `needed` names code.
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
