"""What commands know of jobs that share a run, from their folder alone."""

import os
import shutil
import time

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.jobs.files import log_name
from nnlo_opt.core.jobs.lines import Beat, Left, encoded
from nnlo_opt.core.trials.owner import STALE_S
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState, state_of
from nnlo_opt.core.trials.sharing import FOLDER, may_be_shared_now
from tests.helpers.refusals import check_refused
from tests.helpers.shared_run import SharedRun, shared_run


def says(run, job, *lines, ago_s=0.0):
    (run / FOLDER).mkdir(exist_ok=True)
    log = run / FOLDER / log_name(job)
    log.write_bytes(encoded(log.name, 0, *lines))
    os.utime(log, times=(time.time() - ago_s,) * 2)


def test_a_run_without_the_folder_is_not_shared(tmp_path):
    assert not may_be_shared_now(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_alive_while_its_log_grows_and_it_has_not_left(tmp_path):
    says(tmp_path, 1, Beat(unix_s=1.0), Left())
    assert not may_be_at_work(tmp_path)
    says(tmp_path, 12, Beat(unix_s=1.0))
    assert may_be_at_work(tmp_path)
    says(tmp_path, 12, Beat(unix_s=1.0), ago_s=STALE_S + 10)
    assert not may_be_at_work(tmp_path)


@pytest.mark.parametrize(("leaves", "state"), [(True, RunState.INTERRUPTED), (False, RunState.DEAD)])
def test_a_run_is_dead_only_if_its_last_job_has_not_left(tmp_path, leaves, state):
    ledger = read_ledger(shared_run(tmp_path))
    shutil.rmtree(tmp_path / FOLDER)
    assert state_of(tmp_path, ledger, at_work=False) is RunState.DEAD
    says(tmp_path, 1, Beat(unix_s=1.0), ago_s=900.0)
    says(tmp_path, 2, Beat(unix_s=1.0), *[Left()] * leaves, ago_s=600.0)
    assert state_of(tmp_path, ledger, at_work=may_be_at_work(tmp_path)) is state


def test_a_log_that_is_empty_or_a_link_ends_nothing(tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / log_name(1)).symlink_to("/etc/passwd")
    assert not may_be_shared_now(tmp_path)
    (tmp_path / FOLDER / log_name(2)).write_bytes(b"")
    assert may_be_shared_now(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_no_other_start_takes_a_run_whose_jobs_are_alive(tmp_path, overwrite):
    run = shared_run(tmp_path / "run", ends=False)
    before = (run / "journal.jsonl").read_bytes()
    request = RunRequest(root=tmp_path, name="run", restore=not overwrite, overwrite=overwrite)
    check_refused("jobs share", open_run, request, "run")
    with pytest.raises(ConfigurationError, match="jobs share"):
        repair(run)
    assert (run / "journal.jsonl").read_bytes() == before


def test_overwrite_replaces_the_jobs_with_their_run(tmp_path):
    run = shared_run(tmp_path / "run", ends=True)
    directory = open_run(RunRequest(root=tmp_path, name="run", overwrite=True), "run")
    directory.begin_anew()
    directory.close()
    assert sorted(path.name for path in run.iterdir()) == ["journal.jsonl", "journal.synced", "run.lock"]
    assert (run / "journal.jsonl").read_bytes() == b""


def test_a_link_in_place_of_the_folder_is_refused(tmp_path):
    shutil.move(shared_run(tmp_path / "run", ends=True) / FOLDER, tmp_path / "elsewhere")
    (tmp_path / "run" / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="a link"):
        open_run(RunRequest(root=tmp_path, name="run", overwrite=True), "run")


def test_journals_of_earlier_terms_can_be_removed_once_nobody_works(tmp_path, printed):
    run = shared_run(tmp_path / "run", ends=True)
    assert "1 earlier journal (" in printed("clean", run, "--yes")
    assert sorted(path.name for path in (run / FOLDER).glob("journal-*")) == ["journal-2"]
    assert os.path.samefile(run / FOLDER / "journal-2/journal.jsonl", run / "journal.jsonl")
    SharedRun(run).join()  # it finds that the search is complete
    assert "left alone" in printed("clean", run, "--yes")
