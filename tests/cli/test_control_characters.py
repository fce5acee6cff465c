"""Commands that read a run, whose files anybody may have written: a terminal acts on none of its text."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest
import yaml

from nnlo_opt.core.base.errors import ConfigurationError, printable
from nnlo_opt.core.base.files import with_checksum
from nnlo_opt.core.trials import events as ev
from nnlo_opt.space import Categorical, Real, Space
from tests.helpers.stories import assigned, completed, finished, suggested, write_journal

#: sets the title, clears the screen, sounds the bell; the same by C1; turns the text around; goes back
EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x9d0;pwned\x9c\u202e\u2066\r\b\x7f[red]é"
#: the same as bytes of a name that is no UTF-8, which Python reads as halves of surrogate pairs
NAME = EVIL + os.fsdecode(b"\x9b2J")
#: forms of `nnlo-opt best` for programs; YAML reads both
FORMS = ("json", "yaml")
#: all that may begin with ESC in our output: colours, modes and moves of the cursor
OURS = re.compile(r"\x1b\[(\?\d+[hl]|[\d;]*[mAHKG])")
SPACE = Space([Real(1e-3, 1.0, name=f"rate{EVIL}"), Categorical([EVIL, f"={EVIL}"], name="kind")])
#: runs each command of its argument in a copy of itself, which has imported all that they need
RUNNER = """
import json, os, sys
import nnlo_opt.cli.tool, nnlo_opt.app.commands.watch, nnlo_opt.app.commands.best, nnlo_opt.app.reporting.watch
from nnlo_opt.cli import main
for words in json.loads(sys.argv[1]):
    if not os.fork():
        sys.argv = ["nnlo-opt", *words]
        main.tool()
    os.wait()
"""


def evil_run(folder):
    """A run whose every text is evil, from its name to its values, reasons, tracebacks and hosts."""
    folder.mkdir()
    model, training = {"name": EVIL, "source": EVIL}, {EVIL: EVIL, "epochs": 2}
    identity = {"direction": "min", "figure_of_merit": EVIL, "model": model, "training": training, "n_fold": 1}
    identity |= {"search_space": SPACE.to_json(), "data": {"train": EVIL}}
    settings = {"command_line": ["OptimizationDriver", EVIL], "versions": {EVIL: EVIL}, "plan": {"num_iterations": 9}}
    events = [ev.RunStarted(time_s=0.0, unix_s=100.0, n_ranks=3, n_blocks=1, identity=identity, settings=settings)]
    for n, rate in enumerate((0.1, 0.2, 0.3)):
        events += [suggested(n, {f"rate{EVIL}": rate, "kind": EVIL}, 1.0 + n), assigned(n, n, 1.0 + n)]
        events.append(ev.EpochEnded(time_s=2.0 + n, assignment=n, epoch=1, metrics={EVIL: 0.5}, figure_of_merit=0.5))
    where = {"traceback": f"Traceback:\n  {EVIL}, line 3", "world_rank": 2, "host": EVIL}
    events += [
        finished(0, 0.25, 5.0, metrics={EVIL: 0.5}, n_epochs=2),
        completed(0, 0.25, 5.0),
        ev.AssignmentFailed(time_s=6.0, assignment=1, reason=EVIL, **where),
        ev.TrialFailed(time_s=6.0, trial=1, reason=EVIL),
        ev.RunPreempted(time_s=7.0, reason=EVIL),
    ]
    write_journal(folder, events)
    (folder / f"best_model.{NAME}").touch()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Evil runs: `a` is under way on an evil host, `b` has ended, `c` is damaged, `d` has lost its journal."""
    folder = tmp_path_factory.mktemp("runs")
    for name in "ab":
        evil_run(folder / f"{name}{NAME}")
    owner = {"host": EVIL, "boot": EVIL, "pid": 1, "beat_s": 20.0}
    (folder / f"a{NAME}" / "run.owner").write_text(with_checksum(owner))
    (evil_run(folder / f"c{NAME}") / "journal.jsonl").write_text(f'{{"{EVIL}"\n{EVIL}\n')
    (folder / f"d{NAME}").mkdir()
    (folder / f"d{NAME}" / "config.json").touch()
    return folder


def commands(folder, *, all_of_them):
    """Command lines that read a run, with those that are refused by words of the request or of a file."""
    run, other, damaged, lost = (str(folder / f"{name}{NAME}") for name in "abcd")
    yield from (["status", run], ["show", run, "--trial", "1"], ["list", str(folder)], [EVIL])
    if not all_of_them:
        return
    yield from (["status", damaged], ["compare", run, other], ["show", run], ["show", run, "--sort", EVIL])
    yield from (["show", lost], ["show", damaged], ["repair", damaged], ["repair", other], ["clean", str(folder)])
    yield from (["best", run, "--as", form] for form in ("json", "yaml", "command", EVIL))
    yield from (["best-model", run], ["ensemble", run], ["report", run], ["show", run, f"--{EVIL}"])
    yield from (["enqueue", run, "--wait", "0", f"rate{EVIL}=0.5"], ["enqueue", run, f"kind{EVIL}=0.5"])
    yield from (["stop", run, "--wait", "0"], ["stop", run, "1"], ["export", run, "--to", "csv", "--overwrite"])
    yield from (["simulate", "--duration", f"table:{run}/results.csv"], ["space", run])


def output_of(words, *, in_terminal):
    """What the commands write to their standard output and standard error."""
    program = [sys.executable, "-c", RUNNER, json.dumps([*words])]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150"}
    environment.pop("NO_COLOR", None)
    near, far = pty.openpty() if in_terminal else os.pipe()
    with subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=far, stderr=far, env=environment):
        os.close(far)
        parts = []
        with suppress(OSError):  # the end of a terminal
            while part := os.read(near, 1 << 16):
                parts.append(part)
        os.close(near)
    return b"".join(parts).decode()


def controls_in(text):
    """Characters on which a terminal would act, but for those of our colours and of the ends of its lines."""
    return {found for found in OURS.sub("", text.replace("\r\n", "\n")) if printable(found) != found}


@pytest.mark.parametrize(
    ("in_terminal", "all_of_them"),
    [(True, False), *(pytest.param(where, True, marks=pytest.mark.proof) for where in (True, False))],
)
def test_no_control_character_of_a_run_reaches_the_output(folder, in_terminal, all_of_them):
    text = output_of(commands(folder, all_of_them=all_of_them), in_terminal=in_terminal)
    assert text.count("pwned") > 10
    assert "\\udc9b2J" in text  # of a name that is no UTF-8
    assert not controls_in(text)


def test_what_a_program_reads_keeps_its_values_and_the_page_in_a_terminal_its_colours(folder):
    run = folder / f"b{NAME}"
    text = output_of([["watch", str(run)], *(["best", str(run), "--as", form] for form in FORMS)], in_terminal=True)
    page, *texts = re.split("^(?=run: |{$)", text.replace("\r\n", "\n"), flags=re.M)
    assert "\x1b[31mtrial 1: " in page
    assert "pwned" in page
    assert not controls_in(text)
    for one in texts:
        found = yaml.safe_load(one)
        assert found["parameters"] == {f"rate{EVIL}": 0.1, "kind": EVIL}
        assert found["metrics"] == {EVIL: 0.5}
        assert os.fsencode(found["run"]) == os.fsencode(run)


def test_errors_raised_in_a_script_are_printable_too():
    assert str(ConfigurationError(EVIL)) == printable(EVIL)
    assert not controls_in(printable(EVIL))
