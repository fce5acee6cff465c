import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from refusals import refusal

from nnlo_opt.data.cache import FileCache, parse_copy_command
from nnlo_opt.data.hdf5 import Hdf5Source, write_hdf5
from nnlo_opt.errors import TrialError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "a b.h5"
    path.parent.mkdir()
    write_hdf5(path, {"x": np.arange(10.0), "y": np.arange(10)})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "below"


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_samples_are_read_from_the_copy_and_labels_from_where_they_are(file: Path, folder: Path) -> None:
    cache = FileCache(folder)
    source = Hdf5Source([file], "x", "y", locate=cache.locate)
    source.read_labels()
    assert files_in(folder) == []
    source.read(np.arange(3))
    copy = cache.locate(file)
    assert copy != file
    assert copy.read_bytes() == file.read_bytes()
    file.write_bytes(b"gone")
    assert source.read(np.arange(3))[1].tolist() == [0, 1, 2]
    cache.close()
    cache.close()
    assert list(folder.iterdir()) == []


def test_a_copy_is_shared_and_goes_with_its_last_user(file: Path, folder: Path) -> None:
    caches = [FileCache(folder) for _ in range(3)]
    copies = [cache.locate(file) for cache in caches]
    assert len(set(copies)) == 1
    times = copies[0].stat().st_mtime_ns
    for cache in caches[:2]:
        cache.close()
    assert copies[0].stat().st_mtime_ns == times
    FileCache(folder).close()  # a start in between takes nobody's copy away
    assert copies[0].exists()
    caches[2].close()
    assert files_in(folder) == []


def test_a_file_that_has_changed_is_another_file(file: Path, folder: Path) -> None:
    first = FileCache(folder)
    old = first.locate(file)
    write_hdf5(file, {"x": np.arange(11.0), "y": np.arange(11)})
    second = FileCache(folder)
    assert second.locate(file) != old
    first.close()
    second.close()
    assert files_in(folder) == []


def test_many_processes_and_threads_at_once(file: Path, folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from nnlo_opt.data.cache import FileCache\n"
        "for _ in range(20):\n"
        "    cache = FileCache(Path(sys.argv[2])); copy = cache.locate(Path(sys.argv[1]))\n"
        "    assert copy.read_bytes() == Path(sys.argv[1]).read_bytes(); cache.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(file), str(folder)]) for _ in range(3)]
    cache = FileCache(folder)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(cache.locate(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    cache.close()
    assert files_in(folder) == []


@pytest.mark.parametrize("end", ["pass", "1 / 0", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_however_a_process_ends_its_copies_do_not_stay(file: Path, folder: Path, end: str) -> None:
    program = (
        "import os, sys; from pathlib import Path; from nnlo_opt.data.cache import FileCache\n"
        f"FileCache(Path(sys.argv[2])).locate(Path(sys.argv[1])); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file), str(folder)], capture_output=True, timeout=60, check=False
    )
    if done.returncode == -signal.SIGKILL:
        assert len(files_in(folder)) == 2
        FileCache(folder).close()  # the next start
    assert files_in(folder) == []


# ---------------------------------------------------------------- the command


def test_a_command_copies_without_a_shell(file: Path, folder: Path) -> None:
    cache = FileCache(folder, parse_copy_command("cp {} {}"))
    assert cache.locate(file).read_bytes() == file.read_bytes()
    cache.close()
    strange = file.with_name("$(touch hacked); 'x'.h5")
    shutil.copyfile(file, strange)
    cache = FileCache(folder, parse_copy_command("dd if={} 'of={}'"))
    assert cache.locate(strange).read_bytes() == file.read_bytes()
    cache.close()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false {} {}", "Received: 1 for "),
        ("cp {} {}-elsewhere", "no file for the"),
        ("touch {} {}", "0 bytes for the"),
        ("sh -c 'echo first; echo no room >&2; exit 7' {} {}", "Received: 7 for .*no room"),
    ],
)
def test_a_copy_that_fails_fails_the_trial_and_is_tried_again(
    file: Path, folder: Path, command: str, words: str
) -> None:
    cache = FileCache(folder, parse_copy_command(command))
    for _ in range(2):
        with pytest.raises(TrialError, match=words):
            cache.locate(file)
    cache.close()
    file.unlink()
    with pytest.raises(TrialError, match="No such file"):
        FileCache(folder).locate(file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "twice"),
        ("cp", "twice"),
        ("cp {}", "twice"),
        ("cp {} {} {}", "twice"),
        ("{} {}", "twice"),
        ("cp '{} {}", "No closing quotation"),
        ("no-such-program {} {}", "no-such-program, which is not found"),
    ],
)
def test_a_command_that_is_none_is_refused(text: str, words: str) -> None:
    refusal(parse_copy_command, text, "DATA_COPY_COMMAND", says=(words, "`DATA_COPY_COMMAND`"))


def test_a_folder_that_cannot_be_written_to_is_refused(file: Path) -> None:
    for folder in (file, Path("/proc/nothing")):
        refusal(FileCache, folder, says=[f"`{folder}`"])
