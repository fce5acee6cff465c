"""A journal and the note of an owner with bytes changed, cut, added or moved, as commands take them.

Each reader by itself, and all other files, are in `test_fuzz`.
"""

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_WRONG_REQUEST, ConfigurationError, JournalError
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.core.trials.run_directory import RunRequest, choose_name, open_run
from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.tools.launcher.launch_command import ledger_of
from nnlo_opt.tools.launcher.supervisor import Standing
from tests.helpers.effort import examples
from tests.helpers.refusals import check_refused

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
def test_a_damaged_journal_is_continued_from_its_sound_beginning_or_refused(tmp_path_factory, changes):
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
            ledger_of(run)
    else:
        assert code == EXIT_OK
        assert Standing.of(ledger_of(run)).start[1] == len(applied(EVENTS[:n_sound])["sessions"])
    unnamed = RunRequest(root=root, name=None, restore=True)
    if n_sound is not None and Ledger(EVENTS[:n_sound]).complete:
        check_refused("complete with 4 trials", choose_name, unnamed, "m", "OptimizationDriver")
    else:
        assert choose_name(unnamed, "m", "OptimizationDriver")[0] in ("m-001", "m-002")
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
def test_a_damaged_note_of_the_owner_lets_no_two_in_and_keeps_no_one_out_of_his_own_run(tmp_path_factory, changes):
    run = tmp_path_factory.mktemp("run")
    lock = RunLock(run, 0.0)
    note = run / "run.owner"
    note.write_bytes(edited(note.read_bytes(), changes))
    with pytest.raises(ConfigurationError) as refused:
        RunLock(run, 0.0)
    one_sentence(str(refused.value))
    lock.close()
    RunLock(run, 0.0).close()
