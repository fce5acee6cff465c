"""The way to Keras's loader, as far as it goes without a network: a proxy that is not there stands for none."""

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnlo_opt.data.download import images_from_keras, why_unreachable
from nnlo_opt.errors import ConfigurationError


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def no_network(closed_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder for Keras's cache, and no way out."""
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_what_answers_is_reachable(server: str) -> None:
    assert why_unreachable(f"{server}/there", 10) is None
    assert why_unreachable(f"{server}/not-there", 10) is None


def test_what_refuses_is_not(closed_port: int) -> None:
    assert "refused" in str(why_unreachable(f"http://127.0.0.1:{closed_port}", 10))


def test_a_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        assert why_unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.2) is not None
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_one_sentence_and_no_keras(no_network: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="refused"):
        images_from_keras(name)
    assert list(no_network.iterdir()) == []


@pytest.mark.keras
def test_the_loader_runs_and_its_failure_is_told(no_network: Path) -> None:
    cached = no_network / "datasets" / "mnist.npz"
    cached.parent.mkdir()
    cached.write_bytes(b"half a download")
    with pytest.raises(ConfigurationError, match="URL fetch failure"):
        images_from_keras("mnist")
