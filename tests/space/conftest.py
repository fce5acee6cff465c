import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of the working folder, `my_space.py` if not said otherwise; -> its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="my_space.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write
