"""Files named in a command: code, which identifies the command, and other files, whose changes are only noted."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: suffixes of interpreted code
# fmt: off
CODE_ENDINGS = {
    ".py", ".pyw", ".pyz", ".ipynb", ".sh", ".bash", ".zsh", ".ksh", ".csh", ".fish", ".r", ".jl", ".pl", ".rb",
    ".awk", ".js", ".lua", ".mjs", ".cjs", ".ts", ".m", ".c", ".cc", ".cpp", ".cxx", ".jar", ".scala", ".tcl", ".php",
}
# fmt: on
#: first bytes of scripts and of compiled programs
_SCRIPT, _COMPILED = b"#!", (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
#: bytes of a file to read for its fingerprint, which also includes its size
_MOST_READ = 2**24


@dataclass(frozen=True, kw_only=True)
class NamedFiles:
    """Files of a command with their fingerprints."""

    #: the program if it is a script, and the first other word that is one; without scripts, compiled programs likewise
    code: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    #: files that older versions included in the fingerprint of the command, in the order of its words
    former: dict[str, str] = field(default_factory=dict)


class _File(NamedTuple):
    #: number of the word
    number: int
    name: str
    #: its first bytes
    head: bytes
    fingerprint: str

    @property
    def is_script(self) -> bool:
        return self.head.startswith(_SCRIPT) or Path(self.name).suffix.lower() in CODE_ENDINGS


def named_files(words: Sequence[str]) -> NamedFiles:
    """Return the files in the working folder that words name, alone or behind `=`."""
    files = [*_files(words)]
    code = [file for file in files if file.is_script] or [file for file in files if file.head.startswith(_COMPILED)]
    code = [file for file in code if not file.number] + [file for file in code if file.number][:1]
    names = {file.name for file in code}
    return NamedFiles(
        code={file.name: file.fingerprint for file in code},
        others={file.name: file.fingerprint for file in files if file.name not in names},
        former={file.name: file.fingerprint for file in files if file.number or file.head.startswith(_SCRIPT)},
    )


def _files(words: Sequence[str]) -> Iterator[_File]:
    for number, word in enumerate(words):
        path = Path(word.rpartition("=")[2])
        if not os.path.isfile(path):  # unlike `Path.is_file` no error if the word is too long for a name
            continue
        try:
            with path.open("rb") as file:
                text, size = file.read(_MOST_READ), os.fstat(file.fileno()).st_size
        except OSError:  # what this user may not read has no fingerprint
            continue
        yield _File(
            number=number,
            name=str(path),
            head=text[:4],
            fingerprint=hashlib.sha256(b"%d " % size + text).hexdigest(),
        )
