import os
import signal

import pytest
from exported import story
from stories import write_journal

from nnlo_opt.export.mirror import Mirror
from nnlo_opt.trials.journal import Journal


@pytest.mark.needs("tensorboard")
def test_a_mirror_has_all_there_is_when_the_search_is_over(tmp_path):
    events = story()
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(events[:20])
    mirror = Mirror(tmp_path, "tensorboard")
    journal.append(events[20:])
    assert mirror.finish()
    assert len([*tmp_path.glob("tensorboard/trial-*/*tfevents*")]) == 6


@pytest.mark.needs("optuna")
def test_a_mirror_that_fails_says_so_once_and_ends(tmp_path, capfd):
    write_journal(tmp_path, story())
    (tmp_path / "optuna.log").mkdir()  # where its file is to be
    mirror = Mirror(tmp_path, "optuna")
    assert mirror.finish()
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("The mirror for optuna has ended, and the search goes on: IsADirectoryError")
    assert line.endswith(f"`nnlo-opt export {tmp_path} --to optuna --overwrite` writes it later.")


def test_a_mirror_that_hangs_is_ended(tmp_path):
    mirror = Mirror(write_journal(tmp_path, story()), "csv")
    os.kill(mirror._process.pid, signal.SIGSTOP)
    assert not mirror.finish(0.5)
    assert mirror._process.returncode < 0
