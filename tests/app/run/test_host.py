import pytest

from nnlo_opt.app.run.start.host import Host, Interruption, ScriptHost
from nnlo_opt.core.base.errors import EXIT_OK
from tests.helpers.told_runs import Story


@pytest.mark.parametrize(
    ("catch", "figure", "traceback", "goes_on"),
    [
        (True, None, "Traceback", True),
        (False, 0.5, "", False),
        (None, None, "Traceback", False),
        (None, None, "", True),
        (None, 0.5, "Traceback", True),
    ],
)
def test_a_script_says_which_failure_ends_its_search(catch, figure, traceback, goes_on):
    story = Story()
    if figure is not None:
        story.complete(1.0, story.trial(0.0, 1.0, figure), figure)
    assert ScriptHost(catch=catch).catches(story.ledger, traceback) is goes_on
    assert Host().catches(story.ledger, traceback)


def test_only_the_first_interruption_of_a_script_is_a_wish():
    wish = Interruption()
    host = ScriptHost(interruption=wish)
    heard = []
    for wish.n_asked in range(3):
        heard.append((host.is_interrupted(), host.takes_interrupt()))
    assert heard == [(False, False), (True, True), (True, False)]
    assert not ScriptHost().is_interrupted()
    assert not ScriptHost().takes_interrupt()


def test_a_script_prints_nothing_but_warns(capsys):
    said, warned = [], []
    host = ScriptHost(warn=warned.append)
    host.greet(lambda: said.append("hello"))
    assert host.conclude(lambda: 1) == EXIT_OK
    host.console(quiet=False).say("Trial 1 has ended.")
    host.console(quiet=False).remark("The search was random.")
    Host().console(quiet=False).remark("The search was grid.")
    assert (said, warned, capsys.readouterr().out) == ([], ["The search was random."], "The search was grid.\n")
