"""The main thread of a job that shares its run."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from nnlo_opt.app.run.jobs import joining
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger

BEGUN = [
    ev.RunStarted(time_s=0.0, unix_s=1e6, n_ranks=1, n_blocks=1, identity={}),
    ev.TermBegan(time_s=0.0, term=1, job=1),
]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A job that has its numbers, and an order, before it can see the journal."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(joining.time, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(joining, "check_same", MagicMock())
    monkeypatch.setattr(joining, "folders_of", MagicMock())
    monkeypatch.setattr(joining, "_differing", MagicMock(return_value=[]))
    driver = MagicMock()
    driver.options.walltime_s = driver.context.preemption.left_s = None
    driver.clock.unix_s.return_value, driver.topology.n_blocks = 1e6, 1
    made = joining.JoiningStart(driver)
    made.clock, made.known = clock, Ledger()
    made._run = MagicMock(path=tmp_path, shown=tmp_path, known=lambda: made.known)
    made._thread, made._search, made._findings = MagicMock(number=2), MagicMock(running=None), None
    made._relay, made._beginning = MagicMock(numbers=(3, 1)), MagicMock()
    made._thread.is_alive.return_value = True
    return made


def test_a_job_obeys_nobody_before_it_has_seen_whose_search_it_is(start):
    for _ in range(3):
        assert start._turn() is False
    start._beginning.open_on_ranks.assert_not_called()
    start._relay.turn.assert_not_called()
    start.known = Ledger(BEGUN)
    assert start._turn() is False, "it looks once a second"
    start.clock.now_s += 1.0
    start._turn()
    joining.check_same.assert_called_once()
    start._beginning.open_on_ranks.assert_called_once()
    start._relay.turn.assert_called_once()
