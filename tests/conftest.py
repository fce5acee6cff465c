"""What tests of several folders share: the launcher of real ranks, and real digits made once a session."""

import compileall
import functools
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import nnlo_opt
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_WRONG_REQUEST
from nnlo_opt.engine.loading import modules as user_files
from nnlo_opt.engine.models import framework
from tests.helpers import effort, networks  # noqa: F401 (effort has the profile of `--hypothesis-profile`)
from tests.helpers.launcher import BIN, Preloaded
from tests.helpers.pages import REPOSITORY

#: package that a test may need -> the extra that installs it
EXTRAS = {
    "torch": "torch",
    "lightning": "lightning",
    "torchmetrics": "lightning",
    "accelerate": "accelerate",
    "jax": "jax",
    "optuna": "optuna",
    "cmaes": "optuna",
    "pyarrow": "parquet",
    "transformers": "transformers",
    "xgboost": "boosting",
    "lightgbm": "boosting",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "playwright": "browser",
    "nbclient": "notebook",
    "click": "dev",
}
#: beginning of the folders of tests
FOLDERS = os.path.join(tempfile.gettempdir(), "pytest-of-")
#: what one worker imports or parses for all tests that need it -> the text by which their files are known
TOGETHER = {"keras": "mark.keras", "sources": "from tests.helpers.sources import"}
#: texts by which files are known that start ranks, or other processes
RANKS, STARTS = "mark.mpi", ("subprocess", "tests.helpers.launcher", "multiprocessing", "os.fork")
#: test with variants -> those collected by now
VARIANTS: Counter[str] = Counter()
#: a sentence about tests that were left out -> how many
LEFT_OUT = pytest.StashKey[Counter]()


# A shell has its jobs in the background ignore Ctrl-C, which tests send to what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def why_not(item: pytest.Item, markers: str) -> str | None:
    """Return what would run a test that does not run here; None for a test that does."""
    needed = [package for marker in item.iter_markers("needs") for package in marker.args]
    missing = sorted({EXTRAS[package] for package in needed if importlib.util.find_spec(package) is None})
    if missing:
        return f"needs `pip install 'nnlo_opt[{','.join(missing)}]'`; .ci/run has all packages"
    return "a proof of minutes: `make proofs`" if item.get_closest_marker("slow") and "slow" not in markers else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make proofs of most variants of a test that is marked `many`; leave most of a proof with ranks to `slow`."""
    test, is_variant, _ = item.nodeid.partition("[")
    if item.get_closest_marker("many"):
        VARIANTS[test] += 1
        if VARIANTS[test] % 5 != 1:
            item.add_marker(pytest.mark.proof)
    if is_variant and item.get_closest_marker("mpi") and item.get_closest_marker("proof"):
        proof = f"{test} as a proof"
        VARIANTS[proof] += 1
        # Always the same ones, whichever tests are collected.
        if VARIANTS[proof] > 1 and zlib.crc32(item.nodeid.encode()) % 3:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose packages are not installed, and proofs of minutes unless `-m slow` asks for them."""
    reasons = [why_not(item, config.getoption("-m")) for item in items]
    config.stash[LEFT_OUT] = Counter(filter(None, reasons))
    config.hook.pytest_deselected(items=[item for item, why in zip(items, reasons, strict=True) if why])
    items[:] = [item for item, why in zip(items, reasons, strict=True) if not why]
    if hasattr(config, "workerinput"):  # which workers of pytest-xdist have
        items[:] = longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one worker run all files that share what takes seconds of CPU, such as the import of Keras."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SomeTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(config.rootpath / super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # workers have them in order
    return SomeTogether(config, log)


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order tests for several workers: with Keras, beside them those that wait for what they start, then others."""
    sizes = Counter(scope_of(item.path) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, bool, int, str]:
        scope, text = scope_of(item.path), text_of(item.path)
        return scope != "keras", RANKS not in text, not any(map(text.__contains__, STARTS)), -sizes[scope], scope

    return sorted(items, key=place)


@functools.cache
def text_of(file: Path) -> str:
    """Return the text of a file of tests."""
    return file.read_text()


@functools.cache
def scope_of(file: Path) -> str:
    """Return what a file of tests shares with others, as in `TOGETHER`, or its name; files with ranks share nothing."""
    shared = [what for what, known_by in TOGETHER.items() if known_by in text_of(file) and RANKS not in text_of(file)]
    return shared[0] if shared else str(file)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Spare the garbage collector what has been collected, as tests live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Refuse a framework that collecting has imported."""
    if found := {"keras", "tensorflow", "torch", "jax"} & sys.modules.keys():
        raise pytest.UsageError(
            f"To collect tests takes no framework, as each worker would import it: see `tests.helpers.adapters`. "
            f"Received: {', '.join(sorted(found))}."
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's left out tests to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = dict(session.config.stash.get(LEFT_OUT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Take what a worker left out: each of them collects the same tests."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which tests did not run, and what runs them."""
    for why, n_tests in config.stash.get(LEFT_OUT, Counter()).items():
        terminalreporter.write_line(f"LEFT OUT [{n_tests}] {why}")


#: lines of a rank's log that are shown with a failure, and logs of so many ranks
N_LINES, N_LOGS = 40, 8


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, pytest.TestReport]:
    """Add to a failure the logs of the ranks that the test has started: where each lies, and its last lines."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.rglob("rank-*.log"))[:N_LOGS]:
            lines = log.read_text(errors="replace").splitlines()
            report.sections.append((f"last lines of {log}", "\n".join(lines[-N_LINES:]) or "(empty)"))
    return report


class FailuresAtOnce:
    """Shows the first failure when it happens, and of later ones the name and the message."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._n_failed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a failure to the terminal; all of them stand there again in the end."""
        if not report.failed:
            return
        self._n_failed += 1
        writer = self._config.get_terminal_writer()
        writer.line()
        if self._n_failed > 1:
            message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
            writer.line(f"FAILED {report.nodeid} - {message.partition(chr(10))[0]}", flush=True)
            return
        writer.sep("=", f"first failure: {report.nodeid}", red=True)
        report.toterminal(writer)
        for title, text in report.sections:
            writer.sep("-", title)
            writer.line(text, flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once: where Python is told to write no bytecode, each of hundreds of ranks would do it."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(nnlo_opt.__file__).parent, quiet=2)
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.fixture(params=["FIFO", "socket", "device"])
def irregular(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Makes a FIFO, a socket or a link to a device of this name, and returns the name; opening it might hang."""

    def make(path: Path) -> Path:
        if request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            os.mknod(path, 0o600 | (stat.S_IFIFO if request.param == "FIFO" else stat.S_IFSOCK))
        return path

    return make


@pytest.fixture(params=networks.networks("dense", "torch"))
def network(request) -> networks.Network:
    """The network that ranks train, if it is not said otherwise."""
    return request.param


@pytest.fixture
def reports_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the reports of a kept run written in this process, for what is not about the process that writes them."""
    from tests.helpers.reports_here import ReporterHere

    monkeypatch.setattr("nnlo_opt.app.run.start.coordinate.Reporter", ReporterHere)


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `dense` a framework of this process, as it is one of ranks: for what is not about Keras."""
    monkeypatch.syspath_prepend(Path(networks.__file__).parent / "site")
    for table in (framework.FRAMEWORKS, framework._OF_PACKAGE):
        monkeypatch.setitem(table, "dense", "dense")


@pytest.fixture(autouse=True)
def _no_modules_of_other_tests() -> Generator[None]:
    """Forget the modules that a test has imported from its folder: those of another test have the same names."""
    last, path, named = next(reversed(sys.modules)), [*sys.path], {**user_files._named}
    yield
    sys.path[:] = path
    user_files._named.clear()
    user_files._named.update(named)
    for name in [*itertools.takewhile(lambda name: name != last, reversed(sys.modules))]:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(FOLDERS):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a test, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a reader of a page, who has installed the package, and has no network."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for folder in ("examples", "search_spaces"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    return tmp_path


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command in this process, and returns what it prints; of one that ends with a `code`, its error."""

    def run(*words: object, code: int = EXIT_OK, program: str = "nnlo-opt") -> str:
        from nnlo_opt.cli import tool

        capsys.readouterr()
        assert tool.main([*map(str, words)], program) == code
        out, error = capsys.readouterr()
        return error if code else out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that is a wrong request, and returns the one line with which it is refused."""

    def run(*words: object, program: str = "nnlo-opt") -> str:
        from nnlo_opt.cli import tool

        capsys.readouterr()
        assert tool.main([*map(str, words)], program) == EXIT_WRONG_REQUEST
        out, error = capsys.readouterr()
        assert error.startswith("" if program == "nnlo-opt" else f"{program}: ")
        assert (out, error.count("\n"), "Traceback" in error) == ("", 1, False)
        return error

    return run


@pytest.fixture(scope="session")
def preloaded() -> Generator[Preloaded]:
    """Runs commands and programs in processes that begin at once, and have no framework before they import one."""
    processes = Preloaded()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """A folder with train_mnist.list (700 digits) and test_mnist.list (100 digits)."""
    from nnlo_opt.cli import tool

    folder = tmp_path_factory.mktemp("mnist")
    arguments = ["mnist", "--out", str(folder), "--source", "bundled", "--n-samples", "800"]
    assert tool.main([*arguments, "--n-train-files", "3", "--n-test-files", "2"], "GetData") == 0
    return folder


@pytest.fixture
def write(here):
    """Writes a file of the working folder, `my_space.py` if not said otherwise; -> its name."""

    def write(text, name="my_space.py"):
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return name

    return write
