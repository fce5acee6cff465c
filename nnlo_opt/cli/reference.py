"""Write docs/reference/options.md, the page of all options, from the table of options.

python -m nnlo_opt.cli.reference > docs/reference/options.md
"""

import shlex
from collections.abc import Iterable
from itertools import groupby

from nnlo_opt.app.run.options.table import OPTIMIZATION_OPTIONS, TRAINING_OPTIONS, Option
from nnlo_opt.cli.tool import COMMANDS

_HEAD = """# Options

Generated from the table of options (`nnlo_opt/app/run/options/table.py`) by `python -m nnlo_opt.cli.reference`.

Options may be written with `-` or `_` and shortened while they stay unambiguous: `--train_data=train.list`,
`--early val_loss,<,3`. In Python, `nnlo_opt.optimize` takes the options marked *py* as arguments with `_` for `-`:
`batch=64`, `hyper_opt="sobol"`, `n_fold=5`. A value may be given there as on the command line or as a Python value;
options that may be repeated take a list.
"""


def page() -> str:
    """Return the page."""
    both = [option for option in OPTIMIZATION_OPTIONS if option in TRAINING_OPTIONS]
    parts = [_HEAD, "## OptimizationDriver and TrainingDriver\n", *_groups(both)]
    for command in ("OptimizationDriver", "TrainingDriver"):
        parts += [f"## {command}\n", *_groups(option for option in COMMANDS[command].options if option not in both)]
    for name, entry in [*COMMANDS.items()][2:]:
        parts += [f"## {name}\n", _table(entry.options, python=False)] if entry.options else []
    return "\n".join(parts)


def _groups(options: Iterable[Option]) -> list[str]:
    groups = [(title, [*group]) for title, group in groupby(options, key=lambda option: option.group)]
    return [f"### {title[:1].upper()}{title[1:]}\n\n{_table(group, python=True)}" for title, group in groups]


def _table(options: Iterable[Option], *, python: bool) -> str:
    lines = ["| option | value | default | what it does | example |", "|---|---|---|---|---|"]
    for option in options:
        names = [f"`{flag} {option.metavar}`".replace(" `", "`") for flag in option.flags]
        cells = [
            ", ".join(names) + " *py*" * (python and option.python),
            option.kind.rule if option.metavar else "",
            option.default_text,
            option.help,
            f"`{option.flag} {shlex.quote(option.example)}`" if option.example else f"`{option.flag}`",
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
