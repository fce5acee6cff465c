"""Saves of an objective: alone, and as the coordinator of its rank sees them."""

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.files import with_checksum, without_checksum
from nnlo_opt.core.base.safe_path import NOTE_BYTES, SafePath
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.trials.attempts import attempt_directory, ordered_directory, take_over
from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.engine.objective.checkpoint import TrialCheckpoint, last_save
from tests.engine.objective.test_objective import Bench
from tests.helpers.crash_states import put, recording, states
from tests.helpers.struck_files import stopped_at


def checkpoint_in(folder):
    directory = SafePath(folder)
    return TrialCheckpoint(_directory=directory, _last=last_save(directory))


def write_files(folder):
    assert not [*folder.iterdir()]
    (folder / "layers").mkdir()
    (folder / "layers/w.bin").write_bytes(bytes(range(256)) * 9000)
    (folder / "empty").touch()


def test_a_save_is_found_whole_and_replaces_the_one_before(tmp_path):
    first = checkpoint_in(tmp_path)
    assert (first.folder, first.folders, first.epoch) == (None, [], 0)
    for epoch in (2, 10):
        first.save(epoch, write_files)
        assert [path.name for path in tmp_path.iterdir()] == [f"checkpoint-{epoch}"]
        for checkpoint in (first, checkpoint_in(tmp_path)):
            assert (checkpoint.epoch, checkpoint.folders) == (epoch, [checkpoint.folder])
            assert len((checkpoint.folder / "layers/w.bin").read_bytes()) == 256 * 9000


def test_a_save_that_fails_leaves_the_one_before(tmp_path):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(1, write_files)

    def fails(folder):
        write_files(folder)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        checkpoint.save(2, fails)
    assert checkpoint.epoch == checkpoint_in(tmp_path).epoch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_a_damaged_save_counts_as_none(tmp_path, caplog):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(1, write_files)
    (tmp_path / ".checkpoint-2.cut").mkdir()
    (checkpoint.folder / "empty").write_text("no more")
    assert checkpoint_in(tmp_path).epoch == 0
    assert "does not match its manifest" in caplog.text
    assert not (tmp_path / ".checkpoint-2.cut").exists()


def test_parts_of_many_ranks_are_in_their_order(tmp_path):
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.save(1, write_files)
    for rank in range(1, 12):
        (tmp_path / f"checkpoint-1/rank-{rank}").mkdir()
    assert checkpoint.folders == [tmp_path / f"checkpoint-1/rank-{rank}" for rank in range(12)]


@pytest.mark.parametrize("epoch", [-1, 1.5, True, "1", None])
def test_epochs_are_whole_numbers_from_1(tmp_path, epoch):
    with pytest.raises(TrialError, match="whole numbers from 1"):
        checkpoint_in(tmp_path).save(epoch, write_files)


@pytest.mark.parametrize("first", [0, 1])
def test_saves_have_the_epochs_of_the_trial_and_know_how_it_counts(tmp_path, first):
    checkpoint = checkpoint_in(tmp_path)
    for epoch in range(first, first + 5):
        checkpoint.save(epoch, write_files)
        assert (checkpoint.epoch, checkpoint.n_epochs) == (epoch, epoch - first + 1)
    (place,) = tmp_path.glob("checkpoint-*")
    assert place.name == f"checkpoint-{first + 4}"
    assert last_save(SafePath(tmp_path)).first == first
    again = checkpoint_in(tmp_path)
    assert (again.epoch, again.n_epochs, again.folder is None) == (first + 4, 5, False)


#: epochs in the order of their saves
DISORDER = [5, 1, 2, 2]


def write_number(folder, number):
    (folder / "n").write_text(str(number))


def number_in(checkpoint):
    return int((checkpoint.folder / "n").read_text()) if checkpoint.folder else None


def test_the_last_save_is_the_last_whatever_its_epoch(tmp_path):
    checkpoint = checkpoint_in(tmp_path)
    for number, epoch in enumerate(DISORDER):
        checkpoint.save(epoch, partial(write_number, number=number))
        for found in (checkpoint, checkpoint_in(tmp_path)):
            assert (found.epoch, number_in(found)) == (epoch, number)
        assert len([*tmp_path.iterdir()]) == 1


def test_a_crash_at_any_step_leaves_the_last_save_or_the_one_that_was_being_written(tmp_path, caplog):
    live = tmp_path / "live"
    live.mkdir()
    checkpoint = checkpoint_in(live)
    ends = []
    with recording(live) as steps:
        for number, epoch in enumerate(DISORDER):
            checkpoint.save(epoch, partial(write_number, number=number))
            ends.append(len(steps))
    for n, (done, kind, state) in enumerate(states(steps, {})):
        put(state, tmp_path / str(n))
        n_saved = sum(end <= done for end in ends)
        assert number_in(checkpoint_in(tmp_path / str(n))) in {n_saved - 1 if n_saved else None, n_saved}, kind
    assert n > 50
    assert not caplog.text


def test_saves_of_an_older_version_are_in_the_order_of_their_epochs_before_all_others(tmp_path):
    for epoch in (1, 5, 2):
        folder = tmp_path / f"{epoch}"
        checkpoint_in(folder).save(epoch, partial(write_number, number=epoch))
        place = folder / f"checkpoint-{epoch}"
        manifest = without_checksum((place / "manifest.json").read_text())
        del manifest["number"]
        (place / "manifest.json").write_text(with_checksum(manifest))
        place.rename(tmp_path / place.name)
    old = checkpoint_in(tmp_path)
    assert number_in(old) == 5
    old.save(3, partial(write_number, number=3))
    assert number_in(checkpoint_in(tmp_path)) == 3
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.parametrize(
    "wrong",
    [{"epoch": n} for n in (-5, 0, 1e30, 10**30, 2**53 + 1, "3", None, True)]
    + [{"train_s": s} for s in (-1.0, 1e11, None, float("nan"))]
    + [{"number": n} for n in (-2, "1", 2**60)],
    ids=repr,
)
def test_a_manifest_with_a_value_that_no_save_has_counts_as_none_though_its_checksum_is_right(tmp_path, caplog, wrong):
    checkpoint_in(tmp_path).save(3, write_files)
    manifest = tmp_path / "checkpoint-3/manifest.json"
    manifest.write_text(with_checksum(without_checksum(manifest.read_text()) | wrong))
    assert checkpoint_in(tmp_path).epoch == 0
    assert "skipped a checkpoint" in caplog.text
    checkpoint_in(tmp_path).save(4, write_files)
    assert checkpoint_in(tmp_path).epoch == 4


@pytest.mark.slow
def test_a_save_may_have_a_manifest_larger_than_a_note(tmp_path):
    def write(folder):
        for number in range(4000):
            (folder / f"{number:0250}").touch()

    checkpoint_in(tmp_path).save(1, write)
    assert (tmp_path / "checkpoint-1/manifest.json").stat().st_size > NOTE_BYTES
    assert checkpoint_in(tmp_path).epoch == 1


def write_deep(folder):
    """More folders within each other than Python functions can call each other."""
    for level in range(50, 1101, 50):
        folder.joinpath(*["d"] * level).mkdir(parents=True)


@pytest.mark.slow
def test_a_save_may_hold_folders_nested_deeply(tmp_path):
    checkpoint_in(tmp_path).save(1, write_deep)
    again = checkpoint_in(tmp_path)
    assert again.epoch == 1
    again.save(2, write_files)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_folders_nested_deeply_that_a_killed_save_has_left_are_removed(tmp_path):
    (tmp_path / ".checkpoint-1.cut/rank-0").mkdir(parents=True)
    write_deep(tmp_path / ".checkpoint-1.cut/rank-0")
    assert checkpoint_in(tmp_path).epoch == 0
    assert not [*tmp_path.iterdir()]


# ---------------------------------------------------------------- in a run that jobs share


def attempt(run, number):
    """Attempt `number` of a trial that adds up its epochs, step by step."""
    before = [(1, earlier) for earlier in range(number)]
    order = msg.RunFold(assignment=number, trial=0, fold=0, attempt=1, point={}, term=1, before=before)
    saved = take_over(run, order, last_save)
    checkpoint = TrialCheckpoint(_directory=ordered_directory(run, order), _last=saved)
    total = number_in(checkpoint) or 0
    for epoch in range(checkpoint.epoch + 1, 5):
        total += epoch
        checkpoint.save(epoch, partial(write_number, number=total))
        yield number_in(checkpoint)


@pytest.mark.parametrize("first", [0, 1], ids=["in its saves", "in taking over"])
def test_an_objective_that_wakes_up_changes_nothing_for_the_attempt_after_it(tmp_path, monkeypatch, first):
    def stopped(run, moment=-1, act=None):
        for _ in zip(range(2), attempt(run, 0), strict=False) if first else ():
            pass
        with stopped_at(monkeypatch, moment, act) as struck, suppress(OSError, TypeError):
            list(attempt(run, first))  # it may find its saves gone
        return struck.n_moments

    for moment in range(0, stopped(tmp_path / "counted"), 7):
        run = tmp_path / str(moment)
        after, seen = attempt(run, first + 1), []
        stopped(run, moment, lambda after=after, seen=seen: seen.append(next(after, None)))
        folder = attempt_directory(run, 0, 0, (1, first + 1))
        if seen != [None]:  # there was an epoch left
            assert [int(path.read_bytes()) for path in folder.glob("checkpoint-*/rank-0/n")] == seen
            assert [*seen, *after][-1] == 10, moment
        assert [int(path.read_bytes()) for path in folder.glob("checkpoint-*/rank-0/n")] == [10]


# ---------------------------------------------------------------- as its coordinator sees it


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A block of one rank that saves epoch 2 of 3, and the orders that it is sent with the report of an epoch."""
    monkeypatch.chdir(tmp_path)
    orders = {}

    def objective(parameters, report, checkpoint):
        began.append(checkpoint.epoch)
        for epoch in range(checkpoint.epoch + 1, 4):
            if epoch == 2:
                checkpoint.save(epoch, write_files)
            for order in orders.get(epoch, ()):
                bench.coordinator.send(1, order(assignment=bench.n_calls))
            if not report(epoch, epoch / 2, accuracy=0.9):
                return None
        return 1.0

    began = []
    bench = Bench(objective)
    bench.orders, bench.began = orders, began
    return bench


def kinds(heard):
    return [type(message).__name__ for message in heard]


def saves():
    return [*fold_directory(Path("run"), 0, 0).glob("checkpoint-*")]


def test_reports_say_what_is_saved_and_their_figures_are_results(bench):
    _, *reports, finished = bench.call()
    said = [(report.checkpointed, report.can_pause) for report in reports]
    assert said == [(False, False), (True, True), (False, True)]
    assert finished.metrics == {"value": 1.0, "accuracy": 0.9}
    bench.rank.handle_order(msg.FoldRecorded(assignment=0))
    assert len(saves()) == 1


@pytest.mark.parametrize(
    ("orders", "end"),
    [
        ({3: [msg.PauseFold]}, msg.FoldPaused(assignment=0, epoch=3)),
        ({2: [msg.PreemptFold]}, msg.FoldStopped(assignment=0)),
        ({1: [msg.PreemptFold]}, msg.FoldStopped(assignment=0)),
        ({3: [msg.PauseFold, msg.StopFold]}, msg.FoldStopped(assignment=0)),
    ],
)
def test_a_call_that_had_to_end_begins_at_its_last_save(bench, orders, end):
    bench.orders.update(orders)
    assert bench.call()[-1] == end
    bench.orders.clear()
    started, report, finished = bench.call()
    assert (started.epoch, report.epoch, finished.n_epochs) == (2, 3, 3)
    assert bench.began == [0, 2]


def test_what_saves_nothing_any_more_is_not_preempted(bench):
    bench.orders[3] = [msg.PreemptFold]
    assert kinds(bench.call())[-1] == "FoldFinished"


def test_the_saves_of_a_trial_that_was_pruned_are_removed_once_that_is_recorded(bench):
    bench.orders[3] = [msg.StopFold]
    bench.call()
    assert len(saves()) == 1
    bench.rank.handle_order(msg.FoldRecorded(assignment=0))
    assert not saves()


def test_the_save_of_a_trial_that_was_preempted_stays_when_its_end_is_recorded(bench):
    """Where jobs share a run, another one continues from it."""
    bench.orders[2] = [msg.PreemptFold]
    bench.call()
    bench.rank.handle_order(msg.FoldRecorded(assignment=0))
    assert len(saves()) == 1


@pytest.mark.parametrize("saves_first", [True, False])
def test_epochs_from_0_are_counted_from_1_in_each_attempt(tmp_path, monkeypatch, saves_first):
    monkeypatch.chdir(tmp_path)
    began = []

    def objective(parameters, report, checkpoint):
        began.append(checkpoint.epoch)
        start = 0 if checkpoint.folder is None else checkpoint.epoch + 1
        for epoch in range(start, 4):
            if epoch != 2:
                checkpoint.save(epoch, write_files)
            if epoch or not saves_first:
                report(epoch, 0.5)
            if epoch == 2 and start == 0:
                raise KeyError
        return 1.0

    bench = Bench(objective)
    started, *reports, failed = bench.call()
    assert [report.epoch for report in reports] == [2, 3] if saves_first else [1, 2, 3]
    assert all(report.counts_from_0 for report in reports)
    assert (started.epoch, type(failed)) == (0, msg.FoldFailed)
    started, *reports, finished = bench.call()
    assert (started.epoch, [report.epoch for report in reports], finished.n_epochs) == (2, [3, 4], 4)
    assert began == [0, 1]


def test_a_trial_without_saves_counts_as_its_order_says(bench):
    def objective(parameters, report):
        report(5, 0.5)
        return 1.0

    bench.programs.objective = objective
    bench.rank.handle_order(msg.RunFold(assignment=0, trial=0, fold=0, attempt=2, point={}, first=0))
    _, report, finished = [bench.coordinator.poll().message for _ in range(3)]
    assert (report.epoch, report.counts_from_0, finished.n_epochs) == (6, True, 6)
