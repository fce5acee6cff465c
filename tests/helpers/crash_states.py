"""What may be on a disk after a crash: everything a process did to files below a folder, and the states that allows.

A *kill* leaves all that was done before it; a write may have been cut in its middle. A *power cut* leaves less: of a
file at least what was synced, of a folder at least the entries it had when it was synced, and of all else anything.
Its extremes are the states here: nothing but what was synced; all entries, but only synced contents (a file that was
renamed and is empty); all contents, but only synced entries. After Pillai et al., "All File Systems Are Not Created
Equal", OSDI 2014, section 3.
"""

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

#: path in the folder -> content, None for a folder
State = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done to a file or folder; paths are relative to the recorded folder."""

    #: make, create, write, truncate, rename, remove, sync
    kind: str
    path: str
    data: bytes = b""
    #: where `data` was written; the length after a truncate
    at: int = 0
    #: new path of a rename
    target: str = ""


class Crash(StrEnum):
    """What of the steps before it a crash leaves."""

    KILL = "kill"
    #: as KILL, and the first half of the write under way
    TORN = "torn"
    #: only what was synced
    SYNCED = "synced"
    #: all entries of folders, of files what was synced
    EMPTY = "empty"
    #: synced entries of folders, of files everything
    UNNAMED = "unnamed"


# ---------------------------------------------------------------- a disk


@dataclass(slots=True, eq=False)
class _Node:
    """A file (`content`) or a folder (`entries`), as programs see it and as the disk has it."""

    is_folder: bool
    content: bytearray = field(default_factory=bytearray)
    synced_content: bytes = b""
    entries: dict[str, "_Node"] = field(default_factory=dict)
    synced_entries: dict[str, "_Node"] = field(default_factory=dict)

    def sync(self) -> None:
        self.synced_content = bytes(self.content)
        self.synced_entries = dict(self.entries)


class _Disk:
    """Takes steps in; knows what a crash would leave. Starts from a state that is on the disk as a whole."""

    def __init__(self, state: State) -> None:
        self._root = _Node(is_folder=True)
        for path, content in sorted(state.items()):
            folder, name = self._folder_of(path)
            folder.entries[name] = _Node(is_folder=content is None, content=bytearray(content or b""))
        for node in self._nodes(self._root):
            node.sync()

    def take(self, step: Step) -> None:
        if step.kind == "sync":
            self._node(step.path).sync()
            return
        folder, name = self._folder_of(step.path)
        match step.kind:
            case "make" | "create":
                folder.entries[name] = _Node(is_folder=step.kind == "make")
            case "write":
                content = folder.entries[name].content
                content.extend(bytes(max(0, step.at - len(content))))
                content[step.at : step.at + len(step.data)] = step.data
            case "truncate":
                del folder.entries[name].content[step.at :]
            case "rename":
                into, new_name = self._folder_of(step.target)
                into.entries[new_name] = folder.entries.pop(name)
            case "remove":
                del folder.entries[name]

    def left_by(self, crash: Crash) -> State:
        entries_synced, content_synced = crash in (Crash.SYNCED, Crash.UNNAMED), crash in (Crash.SYNCED, Crash.EMPTY)
        state: State = {}

        def walk(node: _Node, path: str) -> None:
            for name, inner in (node.synced_entries if entries_synced else node.entries).items():
                content = inner.synced_content if content_synced else bytes(inner.content)
                state[path + name] = None if inner.is_folder else content
                walk(inner, f"{path}{name}/")

        walk(self._root, "")
        return state

    def _nodes(self, node: _Node) -> Iterator[_Node]:
        yield node
        for inner in node.entries.values():
            yield from self._nodes(inner)

    def _node(self, path: str) -> _Node:
        node = self._root
        for name in path.split("/") if path not in ("", ".") else ():
            node = node.entries[name]
        return node

    def _folder_of(self, path: str) -> tuple[_Node, str]:
        folder, _, name = path.rpartition("/")
        return self._node(folder), name


def states(steps: list[Step], before: State) -> Iterator[tuple[int, Crash, State]]:
    """Every state that a crash may leave: (number of steps done, kind of crash, state).

    None twice, unless something was synced in between: that is a promise, which a state of before may break.
    """
    disk, n_syncs = _Disk(before), 0
    seen: set[tuple[int, int]] = set()
    for number in range(len(steps) + 1):
        step = steps[number] if number < len(steps) else None
        for kind in Crash:
            if kind is Crash.TORN:
                if step is None or step.kind != "write" or len(step.data) < 2:
                    continue
                torn = _Disk(disk.left_by(Crash.KILL))
                torn.take(Step("write", step.path, step.data[: len(step.data) // 2], step.at))
                state = torn.left_by(Crash.KILL)
            else:
                state = disk.left_by(kind)
            if (mark := (n_syncs, hash(frozenset(state.items())))) not in seen:
                seen.add(mark)
                yield number, kind, state
        if step is not None:
            disk.take(step)
            n_syncs += step.kind == "sync"


def put(state: State, folder: Path) -> None:
    """Make `folder`, which must not exist, what `state` says."""
    folder.mkdir(parents=True)
    for path, content in sorted(state.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def get(folder: Path) -> State:
    """The state of `folder`."""
    places = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else None for name, path in places.items()}


# ---------------------------------------------------------------- recording


class _Recorder:
    """Stands in for the calls by which Python changes files, and passes them on."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self.steps: list[Step] = []
        #: open file descriptor -> path in the folder
        self._open: dict[int, str] = {}

    def inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """`path`, which may be relative to an open folder, in the recorded folder; None for one elsewhere."""
        if not isinstance(path, str | os.PathLike):
            return None
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        # Of a link the place itself, not where it leads.
        folder, name = os.path.split(os.path.abspath(path))
        whole = os.path.join(os.path.realpath(folder), name)
        return os.path.relpath(whole, self._root) if f"{whole}/".startswith(f"{self._root}/") else None

    def note(self, kind: str, path: str, data: bytes = b"", at: int = 0, target: str = "") -> None:
        self.steps.append(Step(kind, path, data, at, target))

    # -------- os

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = self.inside(path, dir_fd)
        existed = inside is not None and os.path.exists(os.path.join(self._root, inside))
        fd = _os["open"](path, flags, mode, dir_fd=dir_fd)
        self._open.pop(fd, None)
        if inside is not None:
            self._open[fd] = inside
            if flags & os.O_CREAT and not existed:
                self.note("create", inside)
            elif flags & os.O_TRUNC:
                self.note("truncate", inside)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        _os["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        at = os.fstat(fd).st_size  # every file written by descriptor is appended to, or new
        n_written = _os["write"](fd, data)
        self.wrote(fd, bytes(data)[:n_written], at)
        return n_written

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        n_written = _os["pwrite"](fd, data, at)
        self.wrote(fd, bytes(data)[:n_written], at)
        return n_written

    def wrote(self, fd: int, data: bytes, at: int) -> None:
        if (path := self._open.get(fd)) is not None:
            self.note("write", path, data, at)

    def fsync(self, fd: int) -> None:
        if fd in self._open:
            self.note("sync", self._open[fd])
        # The model says what is on the disk; the machine's own need not be waited for.

    def ftruncate(self, fd: int, length: int) -> None:
        _os["ftruncate"](fd, length)
        if fd in self._open:
            self.note("truncate", self._open[fd], at=length)

    def rename(self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        _os["rename"](source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        old, new = self.inside(source, src_dir_fd), self.inside(target, dst_dir_fd)
        assert (old is None) == (new is None), "a rename out of the recorded folder, or into it"
        if old is not None and new is not None:
            self.note("rename", old, target=new)

    def replace(self, source: Any, target: Any, **folders: int | None) -> None:
        self.rename(source, target, **folders)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._do("make", "mkdir", path, mode, dir_fd=dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._do("remove", "unlink", path, dir_fd=dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._do("remove", "rmdir", path, dir_fd=dir_fd)

    def _do(self, kind: str, call: str, path: Any, *rest: Any, dir_fd: int | None) -> None:
        _os[call](path, *rest, dir_fd=dir_fd)
        if (inside := self.inside(path, dir_fd)) is not None:
            self.note(kind, inside)

    # -------- open

    def open_file(self, path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        opener = named.get("opener")
        if (self.inside(path) is None and opener is None) or not set(mode) & set("wax+"):
            return _builtin_open(path, mode, *arguments, **named)
        assert set(mode) <= set("wxb"), f"the recorder does not know mode {mode!r}"
        raw = _RecordedFile(path, mode.replace("b", ""), opener or self.open, self)
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, named.get("encoding"), named.get("errors"))


class _RecordedFile(io.FileIO):
    """File that `opener` opens, by the recorder's `open`."""

    def __init__(self, path: Any, mode: str, opener: Callable[[Any, int], int], recorder: _Recorder) -> None:
        super().__init__(path, mode, opener=opener)
        self._recorder = recorder

    def write(self, data: Any) -> int:
        at = self.tell()
        n_written = super().write(data)
        self._recorder.wrote(self.fileno(), bytes(data)[:n_written], at)
        return n_written

    def __enter__(self) -> Self:
        return self


_CALLS = ("open", "close", "write", "pwrite", "fsync", "ftruncate", "rename", "replace", "mkdir", "unlink", "rmdir")
_os: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in _CALLS}
_builtin_open = builtins.open


@contextmanager
def recording(folder: Path) -> Iterator[list[Step]]:
    """The steps below `folder` while the block runs, which must be all that changes it; checked at the end."""
    recorder = _Recorder(folder)
    before = get(folder)
    with (
        patch.multiple(os, remove=recorder.unlink, **{name: getattr(recorder, name) for name in _CALLS}),
        patch.object(io, "open", recorder.open_file),
        patch.object(builtins, "open", recorder.open_file),
    ):
        yield recorder.steps
    disk = _Disk(before)
    for step in recorder.steps:
        disk.take(step)
    assert disk.left_by(Crash.KILL) == get(folder), "something changed a file by a call that is not recorded"
