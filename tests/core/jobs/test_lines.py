"""Logs of jobs: who reads one takes what is complete, and nothing of another file."""

import pytest

from nnlo_opt.core.jobs.files import log_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.lines import JOB_LINES, Beat, Follows, Left, LogReader, LogWriter, Reported, encoded

NAME = log_name(3)
LINES = [Beat(unix_s=5.0), Follows(term=1), Reported(rank=0, message='{"a":"é\\n"}'), Left()]
DATA = encoded(NAME, 0, *LINES)


class Seen:
    """Files of which a part is seen."""

    def __init__(self, data=None):
        self.data = data

    def read(self, name, start=0):
        return None if self.data is None else self.data[start:]


def test_lines_come_back_once_each(tmp_path):
    files = FolderFiles(tmp_path)
    log, reader = LogWriter(files, NAME), LogReader(files, NAME, JOB_LINES)
    assert reader.new() == []
    log.append(*LINES[:1])
    assert reader.new() == LINES[:1]
    log.append(*LINES[1:3])
    log.append(LINES[3])
    assert reader.new() == LINES[1:]
    assert reader.new() == []
    assert reader.n_lines == 4


@pytest.mark.parametrize("hole", [b"", b"\0"], ids=["cut", "NUL bytes"])
def test_a_line_counts_when_all_of_it_is_there(hole):
    for n in range(len(DATA)):
        seen = Seen(DATA[:n] + hole * (len(DATA) - n))
        reader = LogReader(seen, NAME, JOB_LINES)
        n_complete = DATA[:n].count(b"\n")
        assert reader.new() == LINES[:n_complete]
        seen.data = DATA
        assert reader.new() == LINES[n_complete:]


def test_nothing_is_taken_after_a_hole():
    first, second, *_ = DATA.splitlines(keepends=True)
    seen = Seen(bytes(len(first) - 1) + b"\n" + second)
    reader = LogReader(seen, NAME, JOB_LINES)
    assert reader.new() == []
    seen.data = first + second
    assert reader.new() == LINES[:2]


@pytest.mark.parametrize(
    "data",
    [
        encoded(log_name(4), 0, *LINES),  # a line of another log
        encoded(NAME, 1, *LINES),  # another line of this log
        DATA.replace(b'"Beat"', b'"Beet"', 1),
        DATA.replace(b"5.0", b"6.0", 1),
        b'{"seq":0}\n',
        b"\n",
        b"\xff\xfe\n",
    ],
)
def test_what_is_not_the_next_line_does_not_count(data):
    assert LogReader(Seen(data), NAME, JOB_LINES).new() == []
