"""Downloads of images, from a server of this machine; a proxy that is not there stands for no network."""

import hashlib
import http.server
import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.engine.data.sets import download
from nnlo_opt.engine.data.sets.download import downloaded_images, why_unreachable
from tests.helpers.refusals import refusal


def digits() -> bytes:
    """A file as Keras's mnist.npz."""
    x, y = np.zeros((20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10
    file = io.BytesIO()
    np.savez(file, x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    return file.getvalue()


DIGITS = digits()


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


class Server(http.server.ThreadingHTTPServer):
    """A server that has the digits, of which it sends the first time only `n_bytes_first`."""

    n_bytes_first = len(DIGITS)
    n_sent = 0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200 if self.path == "/mnist.npz" else 404)
            self.send_header("Content-Length", str(len(DIGITS)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            running.n_sent += 1
            self.wfile.write(DIGITS if running.n_sent > 1 else DIGITS[: running.n_bytes_first])

        def log_message(self, *_: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        address = f"http://127.0.0.1:{running.server_port}/mnist.npz"
        monkeypatch.setitem(download._FILES, "mnist", (address, hashlib.sha256(DIGITS).hexdigest()))
        yield running
        running.shutdown()
        thread.join()


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_downloaded_once_and_kept_where_keras_looks_for_it(server: Server, tmp_path: Path) -> None:
    images = downloaded_images("mnist")
    assert (len(images.train), len(images.test)) == (20, 5)
    assert images.source == str(tmp_path / "datasets" / "mnist.npz")
    assert files_in(tmp_path) == ["datasets/mnist.npz"]
    server.shutdown()
    assert len(downloaded_images("mnist").train) == 20
    assert server.n_sent == 1


def test_a_download_says_from_where_it_comes_and_how_much_has_come(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PROGRESS_S", 0.0)
    said: list[str] = []
    downloaded_images("mnist", said.append)
    first, *progress = said
    assert first == f"Downloading {url_of(server)}/mnist.npz to {tmp_path / 'datasets'}"
    size = f"{len(DIGITS) / 1e6:,.4g}"
    assert set(progress) == {f"  {size} of {size} MB"}
    downloaded_images("mnist", said.append)
    assert said == [first, *progress], "a file that is there is not downloaded"


def test_a_download_that_broke_off_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.n_bytes_first = 1000
    assert len(downloaded_images("mnist").train) == 20
    assert server.n_sent == 2
    assert files_in(tmp_path) == ["datasets/mnist.npz"]


def test_half_a_download_of_another_program_is_replaced(server: Server, tmp_path: Path) -> None:
    kept = tmp_path / "datasets" / "mnist.npz"
    kept.parent.mkdir()
    kept.write_bytes(DIGITS[:1000])
    assert len(downloaded_images("mnist").train) == 20
    assert kept.read_bytes() == DIGITS


def test_a_file_with_another_checksum_is_refused_and_not_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(download._FILES, "mnist", (download._FILES["mnist"][0], "0" * 64))
    assert "does not match the known hash" in refusal(downloaded_images, "mnist")
    assert files_in(tmp_path) == []


def test_a_file_that_the_server_does_not_have_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(download._FILES, "mnist", (f"{url_of(server)}/other.npz", "0" * 64))
    assert "404" in refusal(downloaded_images, "mnist")


def test_a_folder_that_cannot_be_written_to_is_said(server: Server, tmp_path: Path) -> None:
    (tmp_path / "datasets").write_text("no folder")
    assert "datasets" in refusal(downloaded_images, "mnist")


def test_what_answers_is_reachable(server: Server) -> None:
    assert why_unreachable(f"{url_of(server)}/mnist.npz", 10) is None
    assert why_unreachable(f"{url_of(server)}/not-there", 10) is None


def test_a_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        assert why_unreachable(f"http://127.0.0.1:{silent.getsockname()[1]}", 0.2) is not None
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_one_sentence_and_no_file(no_network: Path, name: str) -> None:
    assert "refused" in refusal(downloaded_images, name)
    assert files_in(no_network) == []


def test_without_a_network_half_a_download_is_said(no_network: Path) -> None:
    kept = no_network / "datasets" / "mnist.npz"
    kept.parent.mkdir()
    kept.write_bytes(b"half a download")
    assert "refused" in refusal(downloaded_images, "mnist")
