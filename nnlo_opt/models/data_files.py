"""Data files of builtin models; model files that were copied from an example import `find_list` from here, too."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError

_ABOVE = Path(__file__).resolve().parents[2]
#: the project's folder if this is a source checkout
_CHECKOUT = [_ABOVE] if (_ABOVE / "setup.py").is_file() else []


def find_list(relative: str, command: str, former_name: str = "") -> Path:
    """Return the list file `relative`, searched in the working directory and then in the project's folder.

    A list of its name, or of its name in NNLO, in the working directory itself will do: NNLO's scripts wrote theirs
    there.

    Raises:
        ConfigurationError: naming `command`, which makes the file, if there is none.
    """
    here = Path.cwd()
    names = dict.fromkeys((relative, Path(relative).name, former_name or relative))
    for path in (*(here / name for name in names), *(folder / relative for folder in _CHECKOUT)):
        if path.is_file():
            return path
    folders = dict.fromkeys((here, *_CHECKOUT))
    raise ConfigurationError(
        f"The data must exist before training. Received: no {relative} in {' or '.join(map(str, folders))}. "
        f"Run `{command}` first."
    )


def find_lists(name: str, former: str = "") -> tuple[Callable[[], Path], Callable[[], Path]]:
    """Return `get_train` and `get_val` of a model whose data `GetData <name>` makes, which NNLO called `former`."""
    get_train, get_val = (
        partial(find_list, f"data/{name}/{part}_{name}.list", f"GetData {name}", former and f"{part}_{former}.list")
        for part in ("train", "test")
    )
    return get_train, get_val
