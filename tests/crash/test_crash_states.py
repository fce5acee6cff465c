"""A crash at every step that a search makes on the disk: it goes on, and ends as if nothing had happened."""

import random
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from nnlo_opt.app.reporting.results import read_ledger, write_results
from nnlo_opt.app.run.start.inbox import Enqueue, Inbox, submit
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.trials.checkpoint import fold_directory, load_weights
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from nnlo_opt.engine.data.lists import read_list, verify, write_list, write_sums
from tests.helpers.crash_states import Crash, State, Step, get, put, recording, states
from tests.helpers.loopback_run import Shape, System, check_outcome, outcomes
from tests.helpers.stories import START, lines_of, trial

#: two blocks of a master and a worker; four trials of two epochs, the last of which fails
SHAPE = Shape(5, 2, n_trials=4)


class Start(System):
    """A start of the run `run` as a session makes it: with its lock, its configuration and its tables."""

    seed = 8

    def open_run(self, directory: Path) -> tuple[Journal, Ledger]:
        self.run_directory = open_run(RunRequest(root=directory.parent, name="run", restore=True), "run")
        self.run_directory.write_config({"seed": self.seed})
        return self.run_directory.journal, self.run_directory.ledger

    def finish(self, rng: np.random.Generator) -> None:
        while self.step(rng):
            pass
        self.coordinator.complete()
        write_results(self.run_directory.path, self.ledger)
        self.run_directory.close()


def search(root: Path, kind: type[Start] = Start) -> Ledger:
    """One start, to its end."""
    rng = np.random.default_rng(0)
    start = kind(root / "run", SHAPE)
    start.run(rng)
    start.finish(rng)
    return start.ledger


@cache
def undisturbed() -> tuple[list[Step], dict[int, object], dict[tuple[int, int], bytes]]:
    """The steps of a search that nothing happens to, how its trials end, and the weights of their folds."""
    with TemporaryDirectory() as folder:
        with recording(Path(folder)) as steps:
            ledger = search(Path(folder))
        return steps, outcomes(ledger), weights_of(Path(folder), ledger)


def weights_of(root: Path, ledger: Ledger) -> dict[tuple[int, int], bytes]:
    folds = [(trial.number, fold) for trial in ledger.trials for fold in trial.folds]
    arrays = {place: load_weights(fold_directory(root / "run", *place)) for place in folds}
    return {place: b"".join(array.tobytes() for array in found) for place, found in arrays.items()}


def check_end(root: Path, ledger: Ledger) -> None:
    _, expected, weights = undisturbed()
    check_outcome(root / "run", SHAPE, ledger)
    assert outcomes(ledger) == expected
    assert weights_of(root, ledger) == weights
    assert vars(read_ledger(root / "run")) == vars(ledger)
    table = (root / "run/results.csv").read_text()
    write_results(root / "run", ledger)
    assert (root / "run/results.csv").read_text() == table


def acknowledged(steps: list[Step], number: int) -> bytes:
    """What of the journal was synced in the first `number` steps: others have been told of it."""
    data, synced = bytearray(), b""
    for step in steps[:number]:
        if step.path == "run/journal.jsonl":
            match step.kind:
                case "write":
                    data[step.at : step.at + len(step.data)] = step.data
                case "truncate":
                    del data[step.at :]
                case "sync":
                    synced = bytes(data)
    return synced


def go_on(state: State, root: Path, number: int, steps: list[Step]) -> None:
    """What was acknowledged is there, and the search comes to the end that it would have come to."""
    put(state, root)
    assert (state.get("run/journal.jsonl") or b"").startswith(acknowledged(steps, number))
    check_end(root, search(root))


def test_the_recorder_sees_everything_that_a_search_does_to_files():
    steps, _, _ = undisturbed()
    kinds = {step.kind for step in steps}
    assert kinds == {"make", "create", "write", "rename", "remove", "sync"}
    written = {Path(step.target or step.path).name.split(".")[0].split("-")[0] for step in steps}
    assert written >= {"journal", "results", "summary", "config", "checkpoint", "weights", "history", "run"}


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_a_search_continues_after_a_crash_at_any_step(tmp_path, every):
    steps, _, _ = undisturbed()
    kinds = []
    for number, kind, state in islice(states(steps, {}), 0, None, every):
        go_on(state, tmp_path / str(len(kinds)), number, steps)
        kinds.append(kind)
    assert set(kinds) == set(Crash)
    assert every > 1 or len(kinds) > len(steps)


def crash_twice(folder: Path, rng: random.Random) -> None:
    """A crash, and another one while the search goes on from it: the journal at the end begins with all promised."""
    steps, _, _ = undisturbed()
    number, _, state = rng.choice(list(states(steps, {})))
    put(state, folder / "first")
    with recording(folder / "first") as again:
        search(folder / "first")
    second, _, after = rng.choice(list(states(again, state)))
    promised = (state.get("run/journal.jsonl") or b"")[: len(acknowledged(steps, number))]
    assert (after.get("run/journal.jsonl") or b"").startswith(promised), second
    put(after, folder / "second")
    check_end(folder / "second", search(folder / "second"))
    assert (folder / "second/run/journal.jsonl").read_bytes().startswith(promised)


@pytest.mark.parametrize("seed", range(3))
def test_a_search_continues_after_a_crash_of_its_resumption(tmp_path, seed):
    crash_twice(tmp_path, random.Random(seed))


@pytest.mark.slow
def test_a_search_continues_after_many_crashes_of_its_resumptions(tmp_path):
    for seed in range(100, 500):
        crash_twice(tmp_path / str(seed), random.Random(seed))


# ---------------------------------------------------------------- requests of users

#: a whole point and a part of one; of the latter the seed chooses the rest
WANTED = [{"train.learning_rate": 0.1, "train.batch": 3, "fault": "none", "at": 1}, {"at": 7, "fault": ""}]


class Steered(Start):
    """A start whose inbox is looked into before every step."""

    def open_inbox(self, directory: Path) -> Inbox:
        return Inbox(directory, self.space, self.ledger, 60.0, lambda text, stream: None)

    def step(self, rng: np.random.Generator) -> bool:
        self.inbox.look()
        return super().step(rng)

    def finish(self, rng: np.random.Generator) -> None:
        super().finish(rng)
        self.inbox.close()


@pytest.mark.proof
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_point_of_a_user_is_tried_once_whatever_the_crash(tmp_path, every):
    (tmp_path / "first/run").mkdir(parents=True)
    for point in WANTED:
        submit(tmp_path / "first/run", Enqueue(point=point))
    before = get(tmp_path / "first")
    with recording(tmp_path / "first") as steps:
        search(tmp_path / "first", Steered)
    removals = [i for i, step in enumerate(steps) if step.kind == "remove" and "/inbox/" in step.path]
    assert len(removals) == 2
    for i, (number, _, state) in enumerate(states(steps, before)):
        if i % every and not any(abs(number - removal) < 2 for removal in removals):
            continue
        folder = tmp_path / str(i)
        put(state, folder)
        ledger = search(folder, Steered)
        for point in WANTED:
            assert len([trial for trial in ledger.trials if trial.point.items() >= point.items()]) == 1
        assert not list((folder / "run/inbox").iterdir())


# ---------------------------------------------------------------- files that are written once


def test_a_list_and_its_checksums_are_those_before_or_those_after_whatever_the_crash(tmp_path):
    root = tmp_path / "recorded"
    root.mkdir()
    old, new = [root / "a.h5", root / "b.h5"], [root / "c.h5"]
    for file in old + new:
        file.write_bytes(file.name.encode())
    write_list(root / "x.list", old)
    write_sums(root / "x.list", old)
    before = get(root)
    with recording(root) as steps:
        write_list(root / "x.list", new)
        n_list = len(steps)
        write_sums(root / "x.list", new)
    seen = set()
    for i, (number, _, state) in enumerate(states(steps, before)):
        folder = tmp_path / str(i)
        put(state, folder)
        names = tuple(file.name for file in read_list(folder / "x.list"))
        seen.add(names)
        assert names in (("a.h5", "b.h5"), ("c.h5",))
        assert names == ("c.h5",) or number < n_list
        try:
            assert verify(folder / "x.list") == len(names)
        except ConfigurationError:
            assert names == ("c.h5",)
            assert number < len(steps)  # between the two writes they do not agree, which is said
    assert len(seen) == 2


def test_a_repair_continues_after_a_crash_at_every_step(tmp_path):
    root = tmp_path / "recorded"
    (root / "run/trials").mkdir(parents=True)
    lines = lines_of([START, *trial(0), *trial(1), *trial(2)])
    for n in range(3):
        (root / f"run/trials/{n:04d}").mkdir()
        (root / f"run/trials/{n:04d}/weights").write_text(str(n))
    del lines[6]  # the suggestion of trial 1, which goes; trial 2 takes its number
    (root / "run/journal.jsonl").write_bytes(b"".join(lines))
    before = get(root)
    with recording(root) as steps:
        repair(root / "run")
    expected = get(root)
    assert expected["run/trials/0001/weights"] == b"2"
    for i, (_, _, state) in enumerate(states(steps, before)):
        folder = tmp_path / str(i)
        put(state, folder)
        repair(folder / "run")
        after = {path: content for path, content in get(folder).items() if not Path(path).name.startswith(".")}
        assert after.items() >= expected.items()
        # A move between folders may leave the old name too; what is put aside belongs to no trial.
        assert all(path.startswith("run/trials.damaged-1/") for path in after.keys() - expected.keys())
