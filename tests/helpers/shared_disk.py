"""Twin of the files that jobs share: a server whose clients see late, and in part, what others have written.

Exclusive creation is decided at once by the server. All else that a client did not write itself becomes visible to it
some seconds after it was synced: bytes, and later names and which journal is published. Until then a client may see
nothing of an append, its first half, all but its newline, or NUL bytes in its place. Of one file it sees nothing that
was appended later than what it does not see.
"""

from dataclasses import dataclass, field
from random import Random

from nnlo_opt.core.jobs.lines import LogReader
from nnlo_opt.core.trials.journal import encode_line, run_of


class Violation(AssertionError):
    """The protocol was broken."""


@dataclass
class Chunk:
    """Bytes of one append."""

    data: bytes
    at_s: float
    #: reader -> seconds until it sees them
    delays: dict[int, float] = field(default_factory=dict)
    #: reader -> what it sees until then
    seen: dict[int, bytes] = field(default_factory=dict)


@dataclass
class File:
    """File on the server."""

    writer: int
    at_s: float
    chunks: list[Chunk] = field(default_factory=list)
    #: reader -> seconds until it sees the name
    delays: dict[int, float] = field(default_factory=dict)

    @property
    def data(self):
        return b"".join(chunk.data for chunk in self.chunks)


class Disk:
    """The server.

    Args:
        rng: source of delays.
        late_s: longest delay of bytes; 0 for none.
        names_late_s: longest delay of names.
    """

    def __init__(self, rng: Random, late_s: float, names_late_s: float) -> None:
        self.rng, self.late_s, self.names_late_s = rng, late_s, names_late_s
        self.now_s = 0.0
        self.files: dict[str, File] = {}
        #: (time, name, process) of the journals that were published, in order, and reader -> delay of each
        self.published: list[tuple[float, str, int, dict[int, float]]] = []

        #: line of a journal -> name of a file -> when its writer had read that last
        self.read_before: dict[bytes, dict[str, float]] = {}

    def lines(self, name, kinds):
        """Yield the lines of a log, each with the time at which it was written."""
        seen = []
        reader = LogReader(self, name, kinds)
        self.read = lambda name, start=0: b"".join(seen)[start:]
        for chunk in self.files[name].chunks:
            seen.append(chunk.data)
            yield from ((line, chunk.at_s) for line in reader.new())

    def shows(self, at_s: float, delays: dict[int, float], reader: int, most_s: float) -> bool:
        """Return True if a reader sees what was written at `at_s` and is delayed by up to `most_s`."""
        if reader not in delays:
            delays[reader] = self.rng.choice([0.0, most_s]) if most_s else 0.0
        return self.now_s - at_s >= delays[reader]

    def torn(self, data: bytes) -> bytes:
        half = data[: len(data) // 2]
        return self.rng.choice(
            [b"", half, data[:-1], bytes(len(data)), half + bytes(len(data) - len(half) - 1) + b"\n"]
        )


class Client:
    """Files as one process sees them; see `core.jobs.files.SharedFiles`.

    Args:
        disk: the server.
        process: number of this process.
        pause: called before each operation with its name; may stop the process for a while, raise to kill it, or
            return True to kill it in the middle.
    """

    def __init__(self, disk, process, pause):
        self._disk, self._process, self._pause = disk, process, pause
        #: name -> time of the last reading
        self._read_s = {}

    def create(self, name, data):
        if self._pause(f"create {name}"):
            self._pause("die")
        if name in self._disk.files:
            return False
        self._disk.files[name] = File(self._process, self._disk.now_s, [Chunk(data, self._disk.now_s)])
        return True

    def append(self, name, data):
        dies = self._pause(f"append {name}")
        file = self._disk.files.setdefault(name, File(self._process, self._disk.now_s))
        if file.writer != self._process:
            raise Violation(f"two writers of {name}: {file.writer} and {self._process}")
        file.chunks.append(Chunk(data[: len(data) // 2] if dies else data, self._disk.now_s))
        if dies:
            self._pause("die")
        for line in data.splitlines() if name.startswith("journal-") else ():
            self._disk.read_before[line] = dict(self._read_s)

    def read(self, name, start=0, most=2**24):
        self._pause(f"read {name}")
        self._read_s[name] = self._disk.now_s
        return self._read(name, start, most)

    def replace(self, name, data):
        if self._pause(f"replace {name}"):
            self._pause("die")
        if name in self._disk.files:
            raise Violation(f"{name} is replaced")
        self._disk.files[name] = File(self._process, self._disk.now_s, [Chunk(data, self._disk.now_s)])

    def journal(self, name):
        return JournalTwin(self, name, self._disk.files[name].data)

    def published(self):
        self._pause("read published")
        for at_s, name, _, delays in reversed(self._disk.published):
            if self._disk.shows(at_s, delays, self._process, self._disk.names_late_s):
                return self._read(name)
        return None

    def publish(self, name):
        self._pause("look at published")
        if not self._disk.published or self._disk.published[-1][1] != name:
            self._pause("publish")
            self._disk.published.append((self._disk.now_s, name, self._process, {self._process: 0.0}))

    def _read(self, name, start=0, most=2**34):
        file = self._disk.files.get(name)
        if file is None:
            return None
        is_own = file.writer == self._process
        if not (is_own or self._disk.shows(file.at_s, file.delays, self._process, self._disk.names_late_s)):
            return None
        parts = []
        for chunk in file.chunks:
            if is_own or self._disk.shows(chunk.at_s, chunk.delays, self._process, self._disk.late_s):
                parts.append(chunk.data)
            else:
                parts.append(chunk.seen.setdefault(self._process, self._disk.torn(chunk.data)))
                break
        return b"".join(parts)[start : start + most]


class JournalTwin:
    """Twin of `core.trials.journal.Journal`."""

    def __init__(self, client, name, data):
        self._client, self._name = client, name
        self._seq, self._run = data.count(b"\n"), run_of(data)

    def append(self, events, *, durable=True):
        lines = (encode_line(seq, event, self._run) for seq, event in enumerate(events, self._seq))
        self._client.append(self._name, b"".join(lines))
        self._seq += len(events)

    def close(self):
        pass
