"""The whole system in one process: coordinator, journal, search, masters and workers, stepped in a seeded order.

A crash drops everything that is in memory; what is on disk goes on. Nothing waits and nothing sleeps.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.core.trials.journal import encode_line
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.sync_mark import read_mark
from nnlo_opt.core.trials.trial import AssignmentEnd, TrialState
from tests.helpers.effort import some_of
from tests.helpers.loopback_run import Shape, System, check_outcome, outcomes

SHAPES = [
    pytest.param(Shape(7, 2), id="three blocks of a master and a worker"),
    pytest.param(Shape(13, 6, n_fold=2), id="two blocks cut into sub-blocks of two workers"),
    pytest.param(Shape(7, 3, n_fold=2), id="two blocks too small to be cut"),
    pytest.param(Shape(9, 3, n_fold=2, even=False), id="a last block with fewer workers"),
    pytest.param(Shape(1, 1, n_fold=2), id="one rank"),
    pytest.param(Shape(3, 1), id="two trainers alone"),
    pytest.param(Shape(9, 4, n_fold=2, synchronous=False), id="sub-blocks, asynchronous"),
    pytest.param(Shape(9, 4, synchronous=False), id="three workers, asynchronous"),
]


def crash(system: System, rng: np.random.Generator) -> None:
    """End a start as a power cut does: what was not waited for may be lost, and a last line may be torn."""
    path = system.journal.path
    system.journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    n_synced = read_mark(path).n_bytes
    while sum(map(len, lines[:-1])) >= n_synced and lines and rng.random() < 0.7:
        lines.pop()
    # The line that was being written says nothing yet: whatever it justifies was not done.
    next_line = encode_line(len(lines), ev.AssignmentLost(time_s=0.0, assignment=0))
    torn = next_line[: int(rng.integers(len(next_line)))] if rng.random() < 0.5 else b""
    path.write_bytes(b"".join(lines) + torn)


def run_search(directory: Path, shape: Shape, seed: int, n_crashes: int) -> Ledger:
    """Run the search in the order of `seed`, crashing at random steps; the live ledger at its end."""
    rng = np.random.default_rng(seed)
    system = System(directory, shape)
    for _ in range(n_crashes):
        if system.run(rng, n_steps=int(rng.integers(1, 160))):
            break
        crash(system, rng)
        system = System(directory, shape, start_s=system.clock.now_s)
    system.run(rng)
    system.finish(rng)
    return system.ledger


@cache
def undisturbed(shape: Shape) -> dict[int, tuple[TrialState, float | None]]:
    """How every trial ends when nothing happens; one order stands for all."""
    with TemporaryDirectory() as directory:
        return outcomes(run_search(Path(directory), shape, seed=10**6, n_crashes=0))


def checkpoints_left(directory: Path) -> list[Path]:
    return sorted((directory / "trials").glob("*/*/checkpoint-*"))


@pytest.mark.parametrize("seed", some_of(range(3)))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_search_ends_every_trial_once_in_every_order_of_events(tmp_path, shape, seed):
    ledger = run_search(tmp_path, shape, seed, n_crashes=0)
    check_outcome(tmp_path, shape, ledger)
    assert not checkpoints_left(tmp_path)
    assert not [a for a in ledger.assignments if a.end is AssignmentEnd.LOST]
    if shape.even and shape.synchronous:
        assert outcomes(ledger) == undisturbed(shape)


@pytest.mark.parametrize("seed", some_of(range(20), 5))
def test_a_search_that_crashes_anywhere_ends_like_one_that_does_not(tmp_path, seed):
    shape = SHAPES[seed % len(SHAPES)].values[0]
    ledger = run_search(tmp_path, shape, seed, n_crashes=1 + seed % 4)
    check_outcome(tmp_path, shape, ledger)
    if shape.even and shape.synchronous:
        # Same points, same weights, same figures, to the last bit.
        assert outcomes(ledger) == undisturbed(shape)


def test_a_complete_run_that_is_started_again_is_over_at_once(tmp_path):
    shape = SHAPES[0].values[0]
    before = outcomes(run_search(tmp_path, shape, 0, n_crashes=0))
    rng = np.random.default_rng(0)
    again = System(tmp_path, shape)
    assert again.coordinator.finished_because
    again.finish(rng)
    assert outcomes(again.ledger) == before
    assert not any(team.deliveries for team in again.teams)


@pytest.mark.parametrize("seed", some_of(range(10), 3))
def test_a_search_of_many_short_walltimes_ends_as_if_it_had_had_time(tmp_path, seed):
    shape = SHAPES[seed % len(SHAPES)].values[0]
    rng = np.random.default_rng(seed)
    now_s, n_starts, n_preempted = 0.0, 0, 0
    while True:
        system = System(tmp_path, shape, start_s=now_s, walltime_s=float(rng.integers(20, 120)))
        system.run(rng)
        checkpoints = checkpoints_left(tmp_path)
        system.finish(rng)
        now_s, n_starts = system.clock.now_s, n_starts + 1
        if system.coordinator.is_complete:
            break
        assert not system.ledger.complete
        assert "walltime" in system.ledger.preempted_because
        assert not [a for a in system.ledger.assignments if a.end is None]
        for assignment in (a for a in system.ledger.assignments if a.end is AssignmentEnd.PREEMPTED):
            n_preempted += 1
            place = fold_directory(tmp_path, assignment.trial, assignment.fold)
            if assignment.fold not in system.ledger.trials[assignment.trial].folds:
                assert not [c for c in checkpoints if c.parent == place and not c.exists()], "a checkpoint was removed"
        assert n_starts < 100, "no start comes any further"
    assert n_starts > 1
    assert n_preempted or shape.world_size == 1  # one rank has one trial at a time, and none where time is short
    assert not [a for a in system.ledger.assignments if a.end is AssignmentEnd.LOST]
    check_outcome(tmp_path, shape, system.ledger)
    if shape.even and shape.synchronous:
        assert outcomes(system.ledger) == undisturbed(shape)
