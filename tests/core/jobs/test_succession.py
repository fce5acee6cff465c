"""What a successor does with files that cannot be read."""

import pytest

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.jobs.files import begun_name, journal_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.lines import Resigned
from nnlo_opt.core.jobs.liveness import Timing
from nnlo_opt.core.jobs.succession import BEGUN, VOID, Candidate
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import encode_line
from tests.helpers.stories import START, suggested

RUN = "0" * 16
EVENTS = [START, ev.TermBegan(time_s=1.0, term=1, job=1), suggested(0)]
DATA = b"".join(encode_line(seq, event, RUN) for seq, event in enumerate(EVENTS))
TIMING = Timing(beat_s=20.0, limit_s=120.0, settle_s=10.0)


@pytest.fixture
def files(tmp_path):
    files = FolderFiles(tmp_path)
    files.replace(journal_name(1), DATA)
    files.create(begun_name(1), BEGUN)
    return files


def candidate(files, resigned=None):
    return Candidate(files, TIMING, 3, 100.0, resigned)


def test_the_last_begun_term_is_succeeded_and_the_others_are_closed(files):
    copy = candidate(files).journal(110.0)
    assert (copy.term, copy.content.events, copy.data) == (1, EVENTS, DATA)
    assert files.read(begun_name(2)) == VOID
    assert not files.create(begun_name(2), BEGUN)


def test_the_last_lines_are_waited_for(files):
    late = candidate(files)
    assert late.journal(100.0) is None
    assert late.journal(109.0) is None
    assert late.journal(110.0) is not None


@pytest.mark.parametrize(("n_bytes", "waits"), [(len(DATA), False), (len(DATA) + 1, True), (0, True)])
def test_what_the_owner_named_when_it_resigned_is_enough(files, n_bytes, waits):
    named = Candidate(files, TIMING, 2, 100.0, Resigned(term=1, journal_bytes=n_bytes))
    assert (named.journal(100.0) is None) is waits
    other_term = candidate(files, Resigned(term=1, journal_bytes=n_bytes))
    assert other_term.journal(100.0) is None


def test_a_torn_end_is_left_out(files):
    files.append(journal_name(1), encode_line(3, suggested(1), RUN)[:-9])
    assert candidate(files).journal(110.0).data == DATA


def test_a_journal_that_stays_damaged_is_an_error_and_one_that_is_late_is_not(tmp_path):
    files = FolderFiles(tmp_path)
    files.create(begun_name(1), BEGUN)
    late = candidate(files)
    assert [late.journal(float(s)) for s in (100, 101, 4000)] == [None] * 3  # it was stopped itself
    files.replace(journal_name(1), DATA[:50] + bytes(20) + DATA[70:])
    for s in range(4001, 4100):
        assert late.journal(float(s)) is None
    with pytest.raises(JournalError, match="need a sound journal"):
        late.journal(4100.0)
