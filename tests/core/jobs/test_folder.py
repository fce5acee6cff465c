"""The files that jobs share, on a real disk."""

import os
from contextlib import closing

import pytest

from nnlo_opt.core.jobs import folder as folder_module
from nnlo_opt.core.jobs.files import journal_name, log_name, term_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.liveness import Timing
from nnlo_opt.core.jobs.terms import Terms
from nnlo_opt.core.trials.journal import encode_line, load_events
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.manual_clock import ManualClock
from tests.helpers.many_jobs import FewTrials
from tests.helpers.steps import fold_finished
from tests.helpers.stories import START, suggested


def test_one_of_several_creates_a_file(tmp_path):
    one, other = FolderFiles(tmp_path), FolderFiles(tmp_path)
    assert one.read(term_name(1)) is None
    assert one.create(term_name(1), b"1\n")
    assert not other.create(term_name(1), b"2\n")
    assert other.read(term_name(1)) == b"1\n"


def test_a_creation_whose_answer_was_lost_has_won(tmp_path, monkeypatch):
    """A network file system asks again, and hears that the name exists."""
    files = FolderFiles(tmp_path)
    link = os.link

    def twice(*arguments, **keywords):
        link(*arguments, **keywords)
        link(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", twice)
        assert files.create(term_name(1), b"1\n")
    assert not files.create(term_name(1), b"2\n")
    assert files.read(term_name(1)) == b"1\n"
    assert os.listdir(tmp_path / "jobs") == [term_name(1)]


def test_a_log_grows_and_is_read_from_any_byte(tmp_path):
    files = FolderFiles(tmp_path)
    files.append(log_name(1), b"one\n")
    files.append(log_name(1), b"two\n")
    assert files.read(log_name(1)) == b"one\ntwo\n"
    assert files.read(log_name(1), 4) == b"two\n"
    assert files.read(log_name(1), 8) == b""


def test_a_failed_append_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    files = FolderFiles(tmp_path)
    files.append(log_name(1), b"one\n")

    def half(fd, data):
        os.write(fd, data[:2])
        raise OSError(28, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "write_fully", half)
        with pytest.raises(OSError, match="no space"):
            files.append(log_name(1), b"two\n")
    assert files.read(log_name(1)) == b"one\n"


def test_the_published_journal_is_the_one_that_is_written(tmp_path):
    files = FolderFiles(tmp_path)
    assert files.published() is None
    for term in (1, 2):
        files.replace(journal_name(term), encode_line(0, START, "0" * 16))
        files.publish(journal_name(term))
        files.publish(journal_name(term))
        with closing(files.journal(journal_name(term))) as journal:
            journal.append([suggested(0)])
        assert load_events(tmp_path / "journal.jsonl") == [START, suggested(0)]
        assert files.published() == files.read(journal_name(term))
    # Whoever still writes to the old one is not read, and its mark is beside it.
    assert sorted(os.listdir(tmp_path)) == ["jobs", "journal.jsonl"]


def test_a_link_in_the_folder_is_not_followed(tmp_path):
    files = FolderFiles(tmp_path)
    (tmp_path / "other").write_bytes(b"1\n")
    (tmp_path / "jobs" / term_name(1)).symlink_to(tmp_path / "other")
    for call in (lambda: files.read(term_name(1)), lambda: files.append(term_name(1), b"2\n")):
        with pytest.raises(OSError, match=r"link|symbolic"):
            call()
    assert not files.create(term_name(1), b"2\n")
    assert (tmp_path / "other").read_bytes() == b"1\n"


def test_a_term_without_a_number_has_no_owner_yet(tmp_path):
    files = FolderFiles(tmp_path)
    terms = Terms(files)
    for data, owner in [(b"", None), (b"1", None), (b"x\n", None), (b"12\n", 12)]:
        files.create(term_name(terms.greatest + 1), data)
        terms.look()
        assert terms.owner(terms.greatest) == owner


class Teams:
    """Teams that finish a fold at once."""

    def __init__(self):
        self.done = []

    @property
    def is_busy(self):
        return bool(self.done)

    def admit(self, first_rank, first_team):
        pass

    def take(self, term, rank, message):
        self.done.append((rank, fold_finished(message.assignment, 0.5)))

    def reports(self):
        done, self.done = self.done, []
        return done

    def let_go(self):
        pass

    drop = let_go


def test_jobs_search_in_a_directory(tmp_path):
    """Real files and the real journal: one job leaves, the other goes on, a third comes after the end."""
    clock = ManualClock(1e6)
    timing = Timing(beat_s=20.0, limit_s=120.0, settle_s=10.0)
    jobs = []
    for _ in range(3):
        jobs.append(Job(FolderFiles(tmp_path), clock, Teams(), FewTrials(4), timing=timing))
        for step in range(40):
            for job in jobs:
                job.step()
            clock.advance(1.0)
            if len(jobs) == 1 and step == 3:
                jobs[0].leave()
                break
    assert [job.is_over for job in jobs] == [True, True, True]
    ledger = Ledger(load_events(tmp_path / "journal.jsonl"))
    assert ledger.complete
    assert [trial.state for trial in ledger.trials] == ["complete"] * 4
