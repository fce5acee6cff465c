"""What the pages show is what their commands print, on real ranks."""

import shutil
from pathlib import Path

import pytest

from nnlo_opt.cli import tool
from tests.helpers.pages import README, REPOSITORY, blocks_of, name_of
from tests.helpers.printed import SAMPLE, Reader, readings, runs_of

pytestmark = pytest.mark.mpi
#: the page whose search `CP` other pages look at
SEARCHING = REPOSITORY / "docs/guide/search.md"
PAGES = [
    pytest.param(
        *page.values, id=page.id, marks=[*page.marks, pytest.mark.proof if page.id in SAMPLE else pytest.mark.slow]
    )
    for page in readings(with_ranks=True)
]


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """The data set that the guide begins with: 5,000 digits."""
    folder = tmp_path_factory.mktemp("digits")
    assert tool.main(["mnist", "--source", "bundled", "--out", str(folder)], "GetData") == 0
    return folder


@pytest.fixture(scope="session")
def searched(tmp_path_factory) -> Path:
    """The place of the run `CP`; the first page that supposes it makes it."""
    return tmp_path_factory.mktemp("searched") / "CP"


@pytest.mark.parametrize(("page", "blocks"), PAGES)
def test_a_page_with_ranks_shows_what_its_commands_print(page, blocks, desk, data, searched):
    shutil.copytree(data, desk / "data/mnist")
    typed = "".join(text for block in blocks for text in runs_of(page, block))
    if "CP" in typed and page != name_of(SEARCHING):
        # It can be resumed only beside the data that it began with.
        if "opt-restore" in typed or not searched.exists():
            commands = [text for block in blocks_of(SEARCHING) for text in block.commands]
            Reader(page, desk).type(next(text for text in commands if "--checkpoint CP" in text))
            shutil.copytree(desk / "checkpoints/CP", searched, dirs_exist_ok=True)
        else:
            shutil.copytree(searched, desk / "checkpoints/CP")
    Reader(page, desk).follow(blocks)


@pytest.mark.proof
def test_the_readme_shows_what_its_searches_print(desk):
    for heading in ("Search any MPI program", "Search from Python"):
        Reader("README.md", desk).follow(block for block in blocks_of(README) if block.heading == heading)
