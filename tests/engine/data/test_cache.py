import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.engine.data.cache import FileCache, parse_copy_command
from nnlo_opt.engine.data.hdf5.source import Hdf5Source, write_hdf5
from tests.helpers.launcher import python
from tests.helpers.refusals import refusal


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
        "import sys; from pathlib import Path; from nnlo_opt.engine.data.cache import FileCache\n"
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
        "import os, sys; from pathlib import Path; from nnlo_opt.engine.data.cache import FileCache\n"
        f"FileCache(Path(sys.argv[2])).locate(Path(sys.argv[1])); {end}"
    )
    if python(program, file, folder).code == -signal.SIGKILL:
        assert len(files_in(folder)) == 2
        FileCache(folder).close()  # the next start
    assert files_in(folder) == []


# ---------------------------------------------------------------- the command


def test_a_forked_child_leaves_the_copies_to_its_parent(file: Path, folder: Path) -> None:
    cache = FileCache(folder)
    copy = cache.locate(file)
    if not (child := os.fork()):
        cache.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert copy.exists()
    cache.close()
    assert not folder.is_dir() or list(folder.iterdir()) == []


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
        ("sh -c 'tr H h < $0 > $1' {} {}", "other bytes for the"),
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


# ---------------------------------------------------------------- neighbours


def own_folder(folder: Path) -> Path:
    """Where the cache `folder` keeps the copies of this user; it is not there yet."""
    cache = FileCache(folder)
    [own] = folder.iterdir()
    cache.close()
    return own


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder in which everybody may write, as /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def stranger(folder: Path, script: str) -> int:
    """Exit code of a shell script that another user runs in `folder`."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    command = ["sh", "-c", script]
    done = subprocess.run(
        command, cwd=folder, user=65534, group=65534, extra_groups=[], umask=0, capture_output=True, check=False
    )
    return done.returncode


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("mkdir -m 700 {own}", "drwx------ of user 65534"),
        ("mkdir -m 777 {own}; ln -s {victim} {own}/copy.part", "drwxrwxrwx of user 65534"),
        ("ln -s {victim} {own}", "lrwxrwxrwx of user 65534"),
        ("touch {own}", "-rw-rw-rw- of user 65534"),
        ("mkfifo {own}", "prw-rw-rw- of user 65534"),
    ],
)
def test_a_folder_of_another_user_is_refused(public: Path, tmp_path: Path, script: str, words: str) -> None:
    own, victim = own_folder(public), tmp_path
    assert stranger(public, script.format(own=own, victim=victim)) == 0
    refusal(FileCache, public, says=(str(own), words, "choose another folder"))
    assert list(victim.iterdir()) == []


def test_a_place_in_which_another_user_can_replace_our_folder_is_refused(public: Path) -> None:
    assert stranger(public, "mkdir -p -m 777 theirs/below && chmod 755 theirs") == 0
    for folder in (public / "theirs", public / "theirs" / "below", public / "theirs" / "new"):
        refusal(FileCache, folder, says=("theirs", "of user 65534", "choose another folder"))
    ours = public / "ours"
    ours.mkdir()
    ours.chmod(0o777)
    refusal(FileCache, ours, says=(f"`{ours}` is drwxrwxrwx", "chmod +t"))
    for mode in (0o1777, 0o2775, 0o700):
        ours.chmod(mode)
        FileCache(ours).close()


def test_another_user_cannot_plant_a_copy(file: Path, public: Path) -> None:
    cache = FileCache(public)
    copy = cache.locate(file)
    for script in (f"echo > {copy}", f"ln -sf /etc/passwd {copy}", f"ls {copy.parent}", f"mv {copy.parent} old"):
        assert stranger(public, script) != 0, script
    assert stranger(public, f"ln {copy} found") != 0
    assert copy.read_bytes() == file.read_bytes()
    cache.close()


def test_our_folder_is_refused_if_other_users_may_write_in_it(folder: Path) -> None:
    own = own_folder(folder)
    own.mkdir()
    own.chmod(0o750)
    refusal(FileCache, folder, says=(str(own), "drwxr-x---", "your own directory, drwx------"))
    own.rmdir()
    own.symlink_to(folder.parent, target_is_directory=True)
    refusal(FileCache, folder, says=(str(own), "lrwxrwxrwx"))


def test_a_folder_that_is_replaced_later_fails_the_trial(file: Path, folder: Path, tmp_path: Path) -> None:
    own = own_folder(folder)
    cache = FileCache(folder)
    own.rmdir()
    own.symlink_to(tmp_path, target_is_directory=True)
    before = files_in(tmp_path)
    with pytest.raises(TrialError, match="lrwxrwxrwx"):
        cache.locate(file)
    assert files_in(tmp_path) == before


def test_a_copy_is_compared_with_its_file_unless_it_is_as_it_was_made(file: Path, folder: Path) -> None:
    first, status, content = FileCache(folder), file.stat(), file.read_bytes()
    copy = first.locate(file)
    file.write_bytes(bytes(len(content)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    FileCache(folder).locate(file)  # nothing has touched the copy: nobody reads it again
    copy.write_bytes(bytes(len(content) - 1) + b"1")
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(TrialError, match=r"which differs from .* and is in use by another process"):
        FileCache(folder).locate(file)
    copy.write_bytes(bytes(len(content)))
    assert FileCache(folder).locate(file) == copy


@pytest.mark.parametrize("command", [None, ("cp", "{}", "{}")])
def test_an_unused_copy_of_unknown_origin_is_made_again(
    file: Path, folder: Path, tmp_path: Path, command: tuple[str, ...] | None
) -> None:
    cache = FileCache(folder, command)
    copy = cache.locate(file)
    cache.close()
    victim = tmp_path / "victim"
    victim.write_bytes(b"private")
    copy.parent.mkdir(mode=0o700)
    for plant in (
        lambda: copy.write_bytes(bytes(file.stat().st_size)),
        lambda: copy.symlink_to(victim),
        lambda: copy.with_name(copy.name + ".part").symlink_to(victim),
    ):
        plant()
        cache = FileCache(folder, command)
        assert cache.locate(file) == copy
        assert copy.read_bytes() == file.read_bytes()
        assert not copy.is_symlink()
        cache.close()
        copy.parent.mkdir(mode=0o700)
    assert victim.read_bytes() == b"private"


def test_a_command_that_makes_a_link_makes_no_copy(file: Path, folder: Path) -> None:
    cache = FileCache(folder, ("ln", "-s", "{}", "{}"))
    with pytest.raises(TrialError, match="no file for the"):
        cache.locate(file)
    assert file.exists()


def test_a_file_may_have_any_name(file: Path, folder: Path) -> None:
    cache = FileCache(folder)
    for name in ("x" * 252 + ".h5", "ü" * 126 + ".h5", os.fsdecode(b"\xff\xfe.h5"), "[a]*?.h5"):
        other = file.rename(file.with_name(name))
        copy = cache.locate(other)
        assert copy.suffix == ".h5"
        assert copy.read_bytes() == other.read_bytes()
        file = other
    cache.close()


def test_the_end_of_a_process_takes_no_folder_away_from_another(file: Path, folder: Path) -> None:
    cache = FileCache(folder)
    FileCache(folder).close()
    assert list(folder.iterdir()) == []
    assert cache.locate(file).read_bytes() == file.read_bytes()
    cache.close()
