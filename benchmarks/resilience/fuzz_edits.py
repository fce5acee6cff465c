"""Damage for fuzz.py: edits of the bytes of a file, and of the values in it with checksums made anew.

An edit makes its choices from one number, so a damaged file can be made again, with fewer edits too.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from random import Random
from typing import Any, NamedTuple

from nnlo_opt.core.base.files import with_checksum
from nnlo_opt.core.trials import journal

#: stands for brackets inside brackets, deeper than any parser of Python follows
DEEP, BRACKETS = "\0deep", b"[" * 20_000 + b"]" * 20_000
#: values of other types, and at the edges of their types
VALUES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**62, 2**63, 2**70, -(2**70), 1.5, -0.0, 5e-324, 1e308, 1e-9),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "min", "☃", "\ud800", "a\nb", "\0", "x" * 300, "1", DEEP),
    *([], [1], [[]], [None], ["x", 0, 0], {}, {"a": 1}, {"name": "x"}),
    *(reduce(lambda value, _: [value], range(depth), 1) for depth in (3, 120, 900)),
)
KEYS = ("x", "name", "kind", "trial", "crc", "class_name", "config", "")
TOKENS = (
    *(b"\n", b"\r\n", b"\0", b"\0" * 5000, b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b"[" * 20_000, b'{"a":' * 5000, b"(" * 150, b"-" * 5000, b"9" * 5000, b"x" * 300, b"x" * 5000, b"=", b",", b":"),
    *(b"NaN", b"-Infinity", b"1e999", b"null", b"true", b"2**70", b"/", b"../", b"/dev/null", b"#", b"'", b'"', b"{}"),
)
NUMBERS = (b"0", b"-1", b"1", b"999", b"4294967295", b"4611686018427387904", b"9" * 30, b"1e308", b"0.5")
_HEAD = journal.LINE_BEGIN.match
BYTES = ("flip", "replace", "insert", "delete", "truncate", "zero", "splice", "line", "token", "number")


def edited(kind: str, data: bytes, rng: Random, pool: Sequence[bytes]) -> bytes:
    """Return `data` after an edit of its bytes, one of `BYTES`; `pool`: sound files."""
    begin, end = _span(data, rng)
    match kind:
        case "flip":
            end = begin + 1
            new = bytes(byte ^ 1 << rng.randrange(8) for byte in data[begin:end])
        case "replace":
            new = rng.randbytes(end - begin)
        case "insert":
            new, end = rng.randbytes(end - begin), begin
        case "delete":
            new = b""
        case "truncate":
            new, end = b"", len(data)
        case "zero":  # some bytes, or all to the end and beyond, as a power cut leaves them
            end = rng.choice((end, len(data), len(data) + 5000))
            new = bytes(end - begin)
        case "splice":  # a piece of a file in the place of a piece, or of all that follows
            other = rng.choice(pool)
            first, last = _span(other, rng)
            new, end = rng.choice(((other[first:last], end), (other[first:], len(data))))
        case "line":  # dropped, doubled, or replaced by one of another file, often with the same number
            own, others = data.split(b"\n"), rng.choice(pool).split(b"\n")
            i = rng.randrange(len(own))
            there = others[i] if i < len(others) and rng.random() < 0.5 else rng.choice(others)
            own[i : i + rng.randrange(2)] = rng.choice(([], [there], own[i : i + 1] * 2))
            return b"\n".join(own)
        case "token":
            new, end = rng.choice(TOKENS), rng.choice((begin, end))
        case _:
            begin, end = rng.choice([found.span() for found in re.finditer(rb"\d+", data)] or [(begin, begin)])
            new = rng.choice(NUMBERS)
            new = rng.choice((new, new[:1] * (end - begin)))
    return data[:begin] + new + data[end:]


def _span(data: bytes, rng: Random) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(begin + rng.randint(1, rng.choice((1, 4, 40, 600))), len(data) + 1)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of everything inside a value."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        is_list = isinstance(container, list)
        keys = [*container] if isinstance(container, dict) else range(len(container) if is_list else 0)
        for key in keys:
            yield container, key
            waiting.append(container[key])


def restructured(value: Any, rng: Random, pool: Sequence[bytes], form: "Form") -> Any:
    """Return `value` with one thing in it changed, removed, doubled, moved, wrapped, or taken from another file."""
    if form.has_lines and value and rng.random() < 0.8:  # inside a line: to read all of them takes ten times as long
        i = rng.randrange(len(value))
        line = Form("line", lambda data: json.loads(rng.choice(form.read(data))), _json)
        value[i] = _json(restructured(json.loads(value[i]), rng, pool, line))
        return value
    places = [*_places(value)]
    if not places:
        return rng.choice(VALUES)
    container, key = rng.choice(places)
    how = rng.random()
    if isinstance(container[key], bytes) and how < (0.3 if form.has_lines else 0.8):
        container[key] = edited(rng.choice(BYTES), container[key], rng, pool)
    elif how < 0.5:
        container[key] = rng.choice(VALUES)
    elif how < 0.65:
        del container[key]
    elif how < 0.75 and isinstance(container, dict):
        container[rng.choice(KEYS)] = container[key]
    elif how < 0.75:
        container.insert(0, container[key])
    elif how < 0.85:
        other, name = rng.choice(places)
        container[key], other[name] = other[name], container[key]
    elif how < 0.9:
        container[key] = rng.choice(([container[key]], {"x": container[key]}))
    else:
        donor, name = rng.choice([*_places(form.read(rng.choice(pool)))])
        container[key] = donor[name]
    return value


@dataclass(frozen=True)
class Form:
    """What the bytes of a file hold.

    `seals`: with checksums that are made anew. `has_lines`: a list of lines of JSON, each as its bytes.
    """

    name: str
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    seals: bool = False
    has_lines: bool = False


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode().replace(json.dumps(DEEP).encode(), BRACKETS)


def _without_crc(data: bytes) -> Any:
    return {key: value for key, value in json.loads(data).items() if key not in ("seq", "crc")}


def _bodies(data: bytes) -> list[bytes]:
    """Return the lines of a journal without their numbers and checksums."""
    lines = (line for line in data.split(b"\n") if line)
    return [b"{" + line[line.find(b",", found.end()) + 1 :] if (found := _HEAD(line)) else line for line in lines]


def _journal(lines: list[Any]) -> bytes:
    bodies = [line if isinstance(line, bytes) else _json(line) for line in lines]
    run = journal.run_of(b'{"seq":0,"crc":"00000000",' + bodies[0][1:] if bodies else b"")
    # The checksum is that of the package, of any body.
    return b"".join(journal._begin(seq, body, run) + body[1:] + b"\n" for seq, body in enumerate(bodies))


def _members(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, bytes) else _json(content))
    return file.getvalue()


def _trace(value: dict[str, Any]) -> bytes:
    lines = [_json(event) for event in value.pop("traceEvents")]
    return _json(value)[:-1] + b',"traceEvents":[\n' + b",\n".join(lines) + b"\n]}\n"


JSON = Form("json", json.loads, _json)
#: part of a timeline
TRACE = Form("trace", json.loads, _trace)
#: JSON whose checksum stands in another file
RESEALED = Form("resealed json", json.loads, _json, seals=True)
SEALED = Form("sealed json", _without_crc, lambda value: with_checksum(value).encode(), seals=True)
JOURNAL = Form("journal", _bodies, _journal, seals=True, has_lines=True)
ARCHIVE = Form("archive", _members, _archive, seals=True)


class Edit(NamedTuple):
    """One of `BYTES` or the name of a form, and the number from which the edit makes its choices."""

    kind: str
    number: int


@dataclass(frozen=True)
class Seed:
    """A sound file."""

    data: bytes
    forms: tuple[Form, ...] = ()

    @cached_property
    def _kinds(self) -> list[str]:
        return [*BYTES, *(form.name for form in self.forms for _ in BYTES)]

    def edits(self, rng: Random) -> list[Edit]:
        """Draw some edits."""
        return [Edit(rng.choice(self._kinds), rng.getrandbits(32)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]

    def damaged(self, edits: Sequence[Edit], pool: Sequence[bytes]) -> tuple[bytes, bool]:
        """Return the file after `edits`, and whether one of them has made its checksums anew; `pool`: sound files."""
        data, sealed = self.data, False
        for kind, number in edits:
            rng = Random(number)
            if kind in BYTES:
                data = edited(kind, data, rng, pool)
                continue
            form = next(form for form in self.forms if form.name == kind)
            try:
                data = form.write(restructured(form.read(data), rng, pool, form))
            except Exception:  # an earlier edit has left nothing to be read, or this one nothing to be written
                continue
            sealed = sealed or form.seals
        return data, sealed
