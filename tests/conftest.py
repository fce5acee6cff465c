"""What tests of several folders share: the launcher of real ranks, and real digits made once a session."""

import compileall
import sys
from pathlib import Path

import pytest

import nnlo_opt

# The launcher; a search in one process; what a crash leaves; steps of the coordinator.
for _folder in ("mpi", "integration", "crash", "coordinator"):
    sys.path.insert(0, str(Path(__file__).parent / _folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Proofs of minutes run when they are asked for: `-m slow`."""
    if "slow" not in config.getoption("-m"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="a proof of minutes, for `-m slow`"))


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: where Python is told to write no bytecode, each of hundreds of ranks would do it."""
    if not hasattr(config, "workerinput"):  # which workers of pytest-xdist have
        compileall.compile_dir(Path(nnlo_opt.__file__).parent, quiet=2)


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """A folder with train_mnist.list (700 digits) and test_mnist.list (100 digits)."""
    from nnlo_opt.cli import getdata

    folder = tmp_path_factory.mktemp("mnist")
    arguments = ["mnist", "--out", str(folder), "--source", "bundled", "--n-samples", "800"]
    assert getdata.main([*arguments, "--n-train-files", "3", "--n-test-files", "2"]) == 0
    return folder
