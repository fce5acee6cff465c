import json
import os

import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.trials.run_lock import LOCK_NAME, OWNER_NAME, RunLock, forget_owner, hold, this_process


def owned_by(run, **changes):
    (run / OWNER_NAME).write_text(json.dumps(this_process() | changes))


def test_the_owner_is_named_while_it_holds_the_run_and_gone_afterwards(tmp_path):
    with hold(tmp_path):
        assert json.loads((tmp_path / OWNER_NAME).read_text())["pid"] == os.getpid()
        with pytest.raises(ConfigurationError, match=rf"process {os.getpid()} on .*wait for it to end"):
            RunLock(tmp_path, timeout_s=0.0)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("changes", [{"pid": 1}, {"host": "a-container-of-another-name"}, {"boot": "before"}], ids=str)
def test_an_owner_of_this_machine_that_does_not_hold_the_lock_is_gone(tmp_path, changes):
    owned_by(tmp_path, **changes)
    with hold(tmp_path):
        assert json.loads((tmp_path / OWNER_NAME).read_text()) == this_process()


def test_an_owner_on_another_machine_is_refused_with_a_remedy_that_works(tmp_path):
    owned_by(tmp_path, host="node-17", boot="another", pid=4711)
    with pytest.raises(ConfigurationError, match=r"process 4711 on node-17.*make sure that it has ended") as caught:
        RunLock(tmp_path, timeout_s=0.0)
    assert str(tmp_path / OWNER_NAME) in str(caught.value)
    assert json.loads((tmp_path / OWNER_NAME).read_text())["pid"] == 4711
    forget_owner(tmp_path)
    forget_owner(tmp_path)
    RunLock(tmp_path, timeout_s=0.0).release()


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0"])
def test_a_note_that_cannot_be_read_names_nobody(tmp_path, text):
    (tmp_path / OWNER_NAME).write_text(text)
    with hold(tmp_path):
        assert json.loads((tmp_path / OWNER_NAME).read_text()) == this_process()


def test_a_run_that_was_let_go_of_can_be_held_again(tmp_path):
    first = RunLock(tmp_path, timeout_s=0.0)
    first.release()
    with hold(tmp_path):
        assert json.loads((tmp_path / OWNER_NAME).read_text()) == this_process()


def test_a_run_that_vanished_can_be_let_go_of(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lock = RunLock(run, timeout_s=0.0)
    for path in run.iterdir():
        path.unlink()
    run.rmdir()
    lock.release()
    run.mkdir()
    with hold(run):
        assert json.loads((run / OWNER_NAME).read_text()) == this_process()
