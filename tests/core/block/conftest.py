"""How the updates of a worker reach the central weights."""

import pytest

from tests.helpers.loopback_team import LoopbackTeam


@pytest.fixture(params=["messages", "shared weights"])
def exchange(request, monkeypatch):
    """Teams whose workers send their updates, and teams whose workers make them themselves."""
    monkeypatch.setattr(LoopbackTeam, "shares", request.param == "shared weights")
    return request.param
