import json
import re
import sys
from contextlib import closing

import pytest

from nnlo_opt.app.reporting.status_lines import has_printed_status
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_PREEMPTED, EXIT_WRONG_REQUEST
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.run_lock import RunLock
from tests.helpers import launcher
from tests.helpers.launcher import python
from tests.helpers.stories import UNDER_WAY, write_journal


@pytest.fixture
def run(tmp_path):
    return str(write_journal(tmp_path, UNDER_WAY))


def test_status_is_a_few_lines_or_one_json_object(run, tmp_path, printed):
    with closing(RunLock(tmp_path, 0.0)):
        assert "Done: 1/4 trials" in printed("status", run)
        found = json.loads(printed("status", run, "--json"))
    assert (found["state"], found["best"]["trial"], found["running"][0]["epoch"]) == ("running", 0, 2)


def test_a_pipe_gets_the_state_of_a_run_that_is_over_and_the_code_tells_if_it_ended(run, tmp_path, capsys, printed):
    assert tool.main(["watch", run]) == EXIT_PREEMPTED
    assert capsys.readouterr().out.count("no process is at work on it") == 1
    write_journal(tmp_path, [ev.RunCompleted(time_s=30.0, reason="all trials are done")])
    assert "finished (all trials are done)" in printed("watch", run)


def test_a_run_that_has_not_begun_is_waited_for_and_then_refused(here, monkeypatch, capsys):
    monkeypatch.setattr("nnlo_opt.app.reporting.watch.BEGIN_S", 0.0)
    assert tool.main(["watch", "later", "--interval", "0.01"]) == EXIT_WRONG_REQUEST
    shown = capsys.readouterr()
    assert "`checkpoints/later`, search: waiting for the first line of the journal." in shown.out
    assert "must hold a journal.jsonl. Received: `checkpoints/later`" in shown.err


def test_the_page_follows_the_size_of_its_terminal(run, tmp_path):
    program = "from nnlo_opt.cli.main import tool; tool()"
    command = [sys.executable, "-c", program, "watch", run, "--interval", "600"]

    def widths(shown):
        return {len(row) for row in re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown.decode()).split("\r\n")}

    with closing(RunLock(tmp_path, 0.0)):
        watcher = launcher.Terminal(command, tmp_path, columns=100)
        assert launcher.seen_within(60, lambda: 100 in widths(watcher.shown))
        n_before = len(watcher.shown)
        watcher.resize(60)
        assert launcher.seen_within(60, lambda: 60 in widths(watcher.shown[n_before:]))
        watcher.process.terminate()
        _, code = watcher.wait()
    _, *pages = watcher.shown[n_before:].partition(b"\x1b[?1049l")[0].split(b"\x1b[H")  # the first is cut
    assert pages
    assert {max(widths(page)) for page in pages} == {60}
    assert code == 128 + 15


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["status", "nowhere"], "must hold a journal.jsonl. Received: `checkpoints/nowhere`"),
        (["watch", "."], "must hold a journal.jsonl. Received: `.`, which does not; name a run in it"),
        (["watch", "nowhere", "--interval", "0"], "`--interval` must be a time above 0"),
        (["status", "--jsn", "nowhere"], "Did you mean `--json`?"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused_in_one_sentence(words, sentence, here, refused):
    (here / "runs").mkdir()
    write_journal(here / "runs", UNDER_WAY)
    assert sentence in refused(*words)


@pytest.mark.parametrize("words", [["nowhere"], [], ["--jsn", "nowhere"], ["a", "b"]], ids=str)
def test_a_quick_status_leaves_to_the_command_what_is_wrong(words, capsys):
    assert not has_printed_status(words)
    assert capsys.readouterr() == ("", "")


def test_status_as_scripts_call_it_imports_neither_numpy_nor_a_framework(run):
    program = f"import sys; sys.argv[1:] = ['status', {run!r}, '--json']; from nnlo_opt.cli.main import tool\n"
    program += (
        "try:\n tool()\nfinally:\n assert not {'argparse', 'numpy', 'rich', 'pandas'} & sys.modules.keys(), sys.modules"
    )
    done = python(program)
    assert (done.code, done.err) == (EXIT_OK, "")
    assert json.loads(done.out)["state"] == "dead"
