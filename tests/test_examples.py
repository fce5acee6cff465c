"""Examples: the page has each of them with its command, and the notebook runs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.launcher import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
NOTEBOOK = EXAMPLES / "search.ipynb"


def commands_of(text: str) -> set[str]:
    """The commands of a text that start ranks; a backslash at its end joins a line."""
    return {" ".join(found.split()) for found in re.findall(r"mpirun -[^`\n]+", text.replace("\\\n", " "))}


def test_the_page_has_every_example():
    listed = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", PAGE)}
    assert not {path.name for path in EXAMPLES.iterdir() if path.name not in listed} - {"README.md", "__pycache__"}


def test_the_page_has_the_commands_that_the_examples_name():
    named = {command for path in EXAMPLES.rglob("*.py") for command in commands_of(path.read_text())}
    assert named == commands_of(PAGE)


def outputs(notebook: Path) -> list[tuple[str, list[set[str]]]]:
    """Every cell with code, and the kinds of what it shows; what a framework writes to standard error is left out."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = [[output for output in cell["outputs"] if output.get("name") != "stderr"] for cell in cells]
    kinds = [[{output["output_type"], *output.get("data", ())} for output in some] for some in shown]
    return [("".join(cell["source"]), of_cell) for cell, of_cell in zip(cells, kinds, strict=True)]


@pytest.mark.keras
@pytest.mark.proof
@pytest.mark.needs("nbclient")
def test_the_notebook_runs_and_shows_what_it_shows_here(tmp_path):
    again = Path(shutil.copy(NOTEBOOK, tmp_path))
    words = [sys.executable, "-m", "jupyter", "execute", "--inplace", again.name]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert outputs(again) == outputs(NOTEBOOK)
