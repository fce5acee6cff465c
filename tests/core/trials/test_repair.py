import os

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from tests.helpers.stories import START, lines_of, trial

DAMAGED = "journal.jsonl.damaged-1"


LINES = lines_of([START, *trial(0), *trial(1), *trial(2)])


@pytest.fixture
def run(tmp_path):
    """A run whose second of three trials has lost its suggestion, with a file of each trial."""
    run = tmp_path / "run"
    for number in range(3):
        folder = run / "trials" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "weights").write_text(str(number))
    (run / "journal.jsonl").write_bytes(b"".join([*LINES[:6], b"#" + LINES[6][1:], *LINES[7:]]))
    return run


def weights_of(run):
    return {path.parent.name: path.read_text() for path in (run / "trials").rglob("weights")}


def test_a_repaired_run_can_be_resumed_and_the_damaged_journal_is_kept(run):
    damaged = (run / "journal.jsonl").read_bytes()
    found, place = repair(run)
    assert str(place) == str(run / DAMAGED)
    assert place.read_bytes() == damaged
    assert [trial.point for trial in read_ledger(run).trials] == [{"x": 0}, {"x": 2}]
    # The files of a trial follow its number; those of the lost one are kept.
    assert weights_of(run) == {"0000": "0", "0001": "2"}
    assert (run / "trials.damaged-1/0001/weights").read_text() == "1"
    directory = open_run(RunRequest(root=run.parent, name=run.name, restore=True), run.name)
    assert len(directory.ledger.trials) == 2
    directory.close()
    assert found.lost == [1]


def test_a_second_repair_finds_nothing_to_do_and_a_second_damage_has_a_name_of_its_own(run):
    repair(run)
    before = (run / "journal.jsonl").read_bytes()
    assert repair(run) is None
    assert (run / "journal.jsonl").read_bytes() == before
    lines = before.splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:4] + lines[5:]))
    assert repair(run)[1].name == "journal.jsonl.damaged-2"
    assert (run / DAMAGED).exists()


def test_a_run_whose_end_was_lost_continues_from_the_rest(run, refused, printed):
    directory = open_run(RunRequest(root=run.parent, name="cut"), "cut")
    directory.journal.append([START, *trial(0), *trial(1)])
    directory.close()
    path = directory.path / "journal.jsonl"
    whole = path.read_bytes()
    n_left = sum(map(len, whole.splitlines(keepends=True)[:6]))
    path.write_bytes(whole[:n_left])
    assert f"{n_left:,} bytes are sound of {len(whole):,}" in refused("show", directory.path)
    missing = f"Missing at the end of the file: {len(whole) - n_left:,} bytes that had been on the disk."
    assert missing in printed("repair", directory.path)
    assert (directory.path / DAMAGED).read_bytes() == whole[:n_left]
    again = open_run(RunRequest(root=run.parent, name="cut", restore=True), "cut")
    assert len(again.ledger.trials) == 1
    again.close()


def test_a_damaged_first_line_is_replaced_by_a_later_start_of_the_same_run(run):
    directory = open_run(RunRequest(root=run.parent, name="two"), "two")
    directory.journal.append([START, *trial(0), START])
    directory.close()
    path = directory.path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"n_ranks":3', b'"n_ranks":4', 1))
    found, _ = repair(directory.path)
    assert isinstance(found.events[0], ev.RunStarted)
    assert len(read_ledger(directory.path).trials) == 1


def test_the_command_says_what_was_lost(run, refused, printed):
    error = refused("show", run)
    assert "damaged in line 7" in error
    assert f"`nnlo-opt repair {run}`" in error
    out = printed("repair", run)
    for words in ("Lost lines: 7.", "Lost trials: 1.", "2 is now 1", "TrialCompleted of trial 1", DAMAGED):
        assert words in out
    assert "is sound: nothing to repair" in printed("repair", run)


def test_a_torn_tail_is_no_damage(run, printed):
    data = b"".join(LINES)[:-5]
    (run / "journal.jsonl").write_bytes(data)
    assert "nothing to repair" in printed("repair", run)
    assert (run / "journal.jsonl").read_bytes() == data


def test_what_cannot_be_repaired_or_is_no_run_is_said(run, tmp_path, refused):
    (run / "journal.jsonl").write_bytes(b"hello\n")
    assert "intact RunStarted" in refused("repair", run)
    assert (run / "journal.jsonl").read_bytes() == b"hello\n"
    assert "must hold a journal.jsonl" in refused("repair", tmp_path / "none")


def test_a_run_that_a_coordinator_holds_is_refused(run, refused):
    sound = b"".join(LINES)
    damaged = (run / "journal.jsonl").read_bytes()
    (run / "journal.jsonl").write_bytes(sound)
    directory = open_run(RunRequest(root=run.parent, name=run.name, restore=True), run.name)
    try:
        (run / "journal.jsonl").write_bytes(damaged)
        assert f"process {os.getpid()} on " in refused("repair", run)
        assert (run / "journal.jsonl").read_bytes() == damaged
    finally:
        directory.close()


def test_the_best_expected_trial_follows_its_number_and_a_lost_one_is_none(tmp_path):
    def repaired(name, number):
        named = ev.BestExpected(time_s=9.0, trial=number)
        lines = lines_of([START, *trial(0), *trial(1), *trial(2), named])
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").write_bytes(b"".join([*lines[:6], b"#" + lines[6][1:], *lines[7:]]))
        repair(tmp_path / name)
        return read_ledger(tmp_path / name).best_expected

    assert repaired("kept", 2).point == {"x": 2}
    assert repaired("lost", 1) is None
