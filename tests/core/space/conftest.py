import pytest


@pytest.fixture
def write(here):
    """Writes a file of the working folder, `my_space.py` if not said otherwise; -> its name."""

    def write(text, name="my_space.py"):
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write
