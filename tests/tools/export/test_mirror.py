import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.tools.export import mirror as module
from nnlo_opt.tools.export.mirror import Mirror
from tests.helpers.exported import story
from tests.helpers.stories import SEARCH, begun, lines_of, write_journal


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
    assert line.startswith("The mirror for optuna has ended, and the run continues: IsADirectoryError")
    assert line.endswith(f"`nnlo-opt export {tmp_path} --to optuna --overwrite` writes it when the run is over.")


def test_a_mirror_that_hangs_is_ended_and_the_rank_that_waits_for_it_is_not(tmp_path, monkeypatch):
    mirror, patience = Mirror(write_journal(tmp_path, story()), "csv"), []
    process, wait = mirror._process, mirror._process.wait
    monkeypatch.setattr(process, "wait", lambda *limit: patience.append(PULSE.patience) or wait(*limit))
    os.kill(process.pid, signal.SIGSTOP)
    assert not mirror.finish(0.5)
    assert process.returncode < 0
    assert patience[0] == math.inf


def test_a_mirror_writes_in_its_own_term_only(tmp_path, monkeypatch):
    """The job that leads next has its own mirror of the same files, which would get each trial twice."""
    taken = []

    def journals(parent):
        for term in (1, 2, 3):
            began = [ev.TermBegan(time_s=0.0, term=number, job=number) for number in range(1, term + 1)]
            atomic_write(tmp_path / "journal.jsonl", b"".join(lines_of([SEARCH, *began, *begun(0)])))
            yield False

    monkeypatch.setattr(module, "_end_after", lambda parent: None)
    monkeypatch.setattr(module, "rounds", journals)
    exporter = SimpleNamespace(take=lambda events, ledger: taken.append((len(events), ledger.term)))
    monkeypatch.setattr(module, "make_exporter", lambda *_: exporter)
    module.mirror(tmp_path, os.getpid(), "csv", 2)
    assert taken == [(3 + len(begun(0)), 2)]


#: starts a mirror that hangs, and dies when the mirror does
DIES = """
import os, select, sys, time
from pathlib import Path
from nnlo_opt.tools.export import mirror
if len(sys.argv) == 2:
    mirror.Mirror.module = "hangs"
    mirror.Mirror(Path(sys.argv[1]), "csv")
    select.select([0], [], [])
    os.kill(os.getpid(), 9)
mirror.LAST_S = 1
mirror.make_exporter = lambda *_: os.write(1, b"hangs") and time.sleep(100)
mirror.mirror(Path(sys.argv[1]), int(sys.argv[2]), "csv", 0)
"""


@pytest.mark.proof
def test_a_mirror_that_hangs_does_not_outlive_a_coordinator_that_was_killed(tmp_path, monkeypatch):
    (tmp_path / "hangs.py").write_text(DIES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write_journal(tmp_path, story())
    # Its output has an end when the mirror, which has inherited it, has ended too.
    words = [sys.executable, str(tmp_path / "hangs.py"), str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as coordinator:
        assert coordinator.stdout.read(5) == b"hangs"
        coordinator.communicate(b"\n", 60)
