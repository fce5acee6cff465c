"""A damaged journal of a run that jobs share is repaired as a new term, which sleepers find when they wake up."""

import os
import time

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.repaired import repair_shared
from nnlo_opt.core.jobs.terms import Terms
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import load_events
from nnlo_opt.core.trials.sharing import FOLDER
from tests.helpers.shared_run import SharedRun


@pytest.fixture
def shared(tmp_path):
    """A run with two jobs under way, which have been stopped an hour ago."""
    shared = SharedRun(tmp_path)
    shared.join()
    shared.turns(3)
    shared.join()
    shared.turns(5)
    for log in (tmp_path / FOLDER).glob("*.log"):
        os.utime(log, times=(time.time() - 3600.0,) * 2)
    return shared


def damage(run, kind):
    """Damage the first line of an event of the newest journal."""
    path = run / FOLDER / "journal-1/journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if kind.__name__.encode() in line)
    lines[place] = lines[place].replace(b"time_s", b"tame_s")
    path.write_bytes(b"".join(lines))


def test_jobs_go_on_with_what_could_be_kept(shared, printed):
    run, before = shared.run, load_events(shared.run / "journal.jsonl")
    damage(run, ev.AssignmentFinished)
    assert "Repaired" in printed("repair", run)
    assert os.path.samefile(run / "journal.jsonl", run / FOLDER / "journal-2/journal.jsonl")
    ledger = read_ledger(run)
    assert (ledger.term, ledger.leader, ledger.jobs_here) == (2, 0, [])
    assert len(ledger.assignments) == sum(isinstance(event, ev.FoldAssigned) for event in before)
    assert not any(trial.running for trial in ledger.trials)
    assert printed("repair", run).endswith("is sound: nothing to repair.\n")
    # One of the jobs wakes up, and finds that it has to join anew; another one comes.
    del shared.jobs[2]
    shared.join()
    shared.turns(60)
    ledger = read_ledger(run)
    assert [number for number, job in ledger.jobs.items() if not job.expelled] == [3, 4]
    assert ledger.complete
    assert all(trial.figure_of_merit == 0.5 / (1 + trial.number) for trial in ledger.trials)
    assert ledger.term > 2


def test_a_sound_journal_is_left_alone(shared):
    assert repair_shared(shared.run) is None
    terms = Terms(FolderFiles(shared.run))
    terms.look()
    assert terms.greatest == 1


@pytest.mark.parametrize("kind", [ev.TrialSuggested, ev.FoldAssigned, ev.TermBegan])
def test_a_journal_that_has_lost_what_names_files_is_kept_for_a_new_search(shared, kind, printed):
    run = shared.run
    damage(run, kind)
    damaged = (run / "journal.jsonl").read_bytes()
    with pytest.raises(JournalError, match="--warm-start") as refusal:
        repair_shared(run)
    assert (run / "journal.jsonl").read_bytes() == damaged
    commands = str(refusal.value).split("`")[3]
    make, copy, repair = commands.split(" && ")
    assert os.system(f"{make} && {copy}") == 0
    assert "Repaired" in printed(*repair.split()[1:])


def test_a_run_whose_jobs_are_alive_is_refused(shared, refused):
    damage(shared.run, ev.AssignmentFinished)
    shared.join()
    assert "jobs share" in refused("repair", shared.run)
