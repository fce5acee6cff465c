"""Files with bytes changed, cut, added or moved: what is sound is used, the rest refused in a sentence."""

import json
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from crash_states import State, get, put
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.cli import tool
from nnlo_opt.cli.launch import standing
from nnlo_opt.data.lists import read_list, sums_path, verify, write_list, write_sums
from nnlo_opt.errors import EXIT_OK, EXIT_WRONG_REQUEST, CheckpointError, ConfigurationError, JournalError
from nnlo_opt.trials import checkpoint
from nnlo_opt.trials.checkpoint import Checkpoint, load_weights, save_weights
from nnlo_opt.trials.journal import read_events
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.repair import repair
from nnlo_opt.trials.run_directory import RunRequest, choose_name, open_run
from nnlo_opt.trials.run_lock import RunLock

GOLDEN = (Path(__file__).parent.parent / "golden" / "journal-format-1.jsonl").read_bytes()
EVENTS = read_events(GOLDEN, "golden")[0]

#: (where to begin, how much goes, what comes in its place); numbers as parts of the file
edits = st.lists(
    st.one_of(
        st.tuples(st.floats(0, 1), st.just(1), st.binary(min_size=1, max_size=1)),
        st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)),
        st.tuples(st.floats(0, 1), st.just(10**9), st.just(b"")),
        st.tuples(st.floats(0, 1), st.integers(1, 600), st.just(bytes(600))),
        # a piece of the same file, from elsewhere
        st.tuples(st.floats(0, 1), st.integers(0, 300), st.tuples(st.floats(0, 1), st.integers(1, 300))),
    ),
    min_size=1,
    max_size=3,
)


def edited(data: bytes, changes: list) -> bytes:
    """`data` after some edits."""
    for where, length, new in changes:
        begin = int(where * len(data))
        if isinstance(new, tuple):
            source = int(new[0] * len(data))
            piece = data[source : source + new[1]]
        else:
            piece = new[: max(length, 40)]
        data = data[:begin] + piece + data[begin + length :]
    return data


def one_sentence(text: str) -> None:
    assert text.strip()
    assert "\n" not in text.strip()
    assert "Traceback" not in text


# ---------------------------------------------------------------- the journal


def applied(events: list) -> dict:
    return vars(Ledger(events))


@given(changes=edits)
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_journal_is_gone_on_with_from_its_sound_beginning_or_refused(tmp_path_factory, changes):
    root = tmp_path_factory.mktemp("runs")
    run = root / "m-001"
    run.mkdir()
    data = edited(GOLDEN, changes)
    (run / "journal.jsonl").write_bytes(data)
    n_sound = None
    try:
        events, n_bytes = read_events(data, "journal")
    except JournalError as error:
        one_sentence(str(error))
    else:
        n_sound = len(events)
        assert events == EVENTS[:n_sound]
        assert GOLDEN.startswith(data[:n_bytes])
    # Commands that only look.
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        code = tool.main(["show", str(run)])
    if n_sound is None:
        assert code == EXIT_WRONG_REQUEST
        one_sentence(said.getvalue())
        with pytest.raises(JournalError):
            standing(run)
    else:
        assert code == EXIT_OK
        assert standing(run).start[1] == len(applied(EVENTS[:n_sound])["sessions"])
    assert choose_name(RunRequest(root=root, name=None, restore=True), "m", "OptimizationDriver")[0] in (
        "m-001",
        "m-002",
    )
    assert (run / "journal.jsonl").read_bytes() == data, "a look has changed the journal"
    # To go on with it.
    request = RunRequest(root=root, name="m-001", restore=True)
    if n_sound is None:
        with pytest.raises(JournalError) as refused:
            open_run(request, "m-001")
        one_sentence(str(refused.value))
        assert (run / "journal.jsonl").read_bytes() == data
        try:
            repair(run)
        except JournalError as error:
            one_sentence(str(error))
            return
    directory = open_run(request, "m-001")
    if n_sound is not None:
        assert vars(directory.ledger) == applied(EVENTS[:n_sound])
    directory.close()


@given(changes=edits)
@settings(max_examples=examples(100), deadline=None)
def test_a_damaged_note_of_the_owner_never_lets_two_in_and_never_keeps_one_out_of_his_own_run(
    tmp_path_factory, changes
):
    run = tmp_path_factory.mktemp("run")
    lock = RunLock(run, 0.0)
    note = run / "run.owner"
    note.write_bytes(edited(note.read_bytes(), changes))
    with pytest.raises(ConfigurationError) as refused:
        RunLock(run, 0.0)
    one_sentence(str(refused.value))
    lock.release()
    RunLock(run, 0.0).release()


# ---------------------------------------------------------------- checkpoints and weights

WEIGHTS, STATE = np.linspace(-1, 1, 300, dtype=np.float32), np.arange(4, dtype=np.float32)
FILES = ["master.npz", "master.json", "worker-1.json", "worker-1.npz", "group-1-1.npz", "manifest.json"]


@cache
def saved_weights() -> bytes:
    with TemporaryDirectory() as place:
        save_weights(Path(place), WEIGHTS, STATE)
        return (Path(place) / "weights.npz").read_bytes()


@given(changes=edits)
@settings(max_examples=examples(300), deadline=None)
def test_damaged_weights_are_what_they_were_or_refused(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("fold")
    path = folder / "weights.npz"
    path.write_bytes(edited(saved_weights(), changes))
    try:
        weights, state = load_weights(folder)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017
        one_sentence(str(error))
        return
    for found, expected in ((weights, WEIGHTS), (state, STATE)):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def test_weights_of_which_a_changed_header_hides_a_part_are_refused(tmp_path):
    # The archive's own checksum is looked at when a member is read to its end.
    save_weights(tmp_path, WEIGHTS, STATE)
    path = tmp_path / "weights.npz"
    data = path.read_bytes()
    assert data.count(b"(300,)") == 1
    path.write_bytes(data.replace(b"(300,)", b"(200,)"))
    with pytest.raises(CheckpointError, match="weights"):
        load_weights(tmp_path)


@cache
def saved() -> State:
    """A checkpoint of epoch 3 with everything that one may have, beside that of epoch 2."""
    with TemporaryDirectory() as place:
        folder, kept = Path(place), {}
        for epoch in (2, 3):
            temporary = checkpoint.begin(folder, epoch)
            files = checkpoint.save_local(temporary, 1, {"momentum": WEIGHTS * epoch, "n": epoch})
            files |= checkpoint.save_group(temporary, range(1, 2), {"centre": WEIGHTS})
            whole = Checkpoint(
                epoch=epoch,
                arrays={"central": WEIGHTS * epoch},
                master={"version": epoch},
                workers={1: {"offset": epoch}},
            )
            checkpoint.save(folder, whole, temporary, files)
            kept |= get(folder)
        return kept


def facts(found: Checkpoint) -> tuple:
    assert found.place is not None
    local = checkpoint.load_local(found.place, 1) if 1 in found.remembering else None
    group = checkpoint.load_group(found.place, range(1, 2)) if (1, 1) in found.groups_remembering else None
    plain = json.dumps([found.epoch, dict(found.master), {n: dict(w) for n, w in found.workers.items()}])
    arrays = {**found.arrays, **{f"local {n}": v for n, v in (local or {}).items()}, **(group or {})}
    return plain, {name: np.asarray(array).tobytes() for name, array in arrays.items()}


@given(name=st.sampled_from(FILES), changes=edits)
@settings(max_examples=examples(200), deadline=None)
def test_a_damaged_checkpoint_is_what_it_was_or_passed_over_for_the_one_before(tmp_path_factory, name, changes):
    folder = tmp_path_factory.mktemp("folds") / "fold"
    put(saved(), folder)
    place = folder / "checkpoint-3"
    sound = [facts(checkpoint.load(folder / f"checkpoint-{epoch}")) for epoch in (3, 2)]
    data = (place / name).read_bytes()
    (place / name).write_bytes(edited(data, changes))
    found = checkpoint.load_latest(folder)
    assert found is not None
    assert facts(found) in (sound if name == "manifest.json" or (place / name).read_bytes() == data else sound[1:])


# ---------------------------------------------------------------- lists


@given(which=st.sampled_from(["list", "sums"]), changes=edits)
@settings(max_examples=examples(300), deadline=None)
def test_a_damaged_list_or_its_checksums_name_the_same_files_or_are_refused(tmp_path_factory, which, changes):
    folder = tmp_path_factory.mktemp("lists")
    files = [folder / name for name in ("a.h5", "b.h5", "c.h5")]
    for file in files:
        file.write_bytes(file.name.encode() * 50)
    path = folder / "train.list"
    write_list(path, files)
    write_sums(path, files)
    target = path if which == "list" else sums_path(path)
    target.write_bytes(edited(target.read_bytes(), changes))
    try:
        assert set(read_list(path)) <= set(files)  # without checksums nobody can tell that a line is missing
    except ConfigurationError as error:
        one_sentence(str(error))
    try:
        verify(path)
    except ConfigurationError as error:
        one_sentence(str(error))
    else:
        assert set(read_list(path)) == set(files)
