"""Mirrors at the end of a search."""

import importlib.util
from types import SimpleNamespace

import pytest

from nnlo_opt.app.run.afterwards import mirrors
from nnlo_opt.app.run.afterwards.mirrors import TOOLS, ask_mirrors, end_mirrors
from nnlo_opt.tools.export import exporter
from nnlo_opt.tools.export.mirror import ProcessMirrors
from tests.helpers.manual_clock import ManualClock
from tests.helpers.refusals import check_refused


@pytest.mark.parametrize(("left_s", "report_s", "waits_s"), [(None, 0, 30), (1000.0, 20, 10), (8.0, 0, 2), (8.0, 9, 0)])
def test_mirrors_share_the_time_that_there_is_and_each_that_is_behind_is_a_line(monkeypatch, left_s, report_s, waits_s):
    clock, said, waited = ManualClock(), [], []

    def wait(timeout_s):
        waited.append(timeout_s)
        clock.advance(timeout_s)
        return False

    monkeypatch.setattr(mirrors.time, "monotonic", clock.monotonic_s)
    asked = []
    tools = ("optuna", "tensorboard")
    started = [SimpleNamespace(tool=tool, ask=lambda: asked.append(1), finish=wait) for tool in tools]
    until_s = ask_mirrors(started, left_s)
    assert len(asked) == 2
    clock.advance(report_s)
    directory = SimpleNamespace(shown="checkpoints/S")
    end_mirrors(started, directory, until_s, lambda text, stream: said.append(text))
    assert waited == [waits_s, 0]
    assert said[1] == (
        "The mirror for tensorboard is behind: `nnlo-opt export checkpoints/S --to tensorboard --overwrite` brings it "
        "up to date."
    )


def test_there_is_an_exporter_for_each_mirror():
    assert {*TOOLS} <= {*exporter.TOOLS}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_mirror_whose_package_is_missing_is_refused(tool, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    check_refused(f"`--mirror {tool}` needs the package {tool}", ProcessMirrors().require, tool)
