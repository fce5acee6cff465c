"""Scripts and notebooks that resume their runs: what has changed around an objective is told from the objective."""

import json
import shutil

import pytest

import nnlo_opt
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from tests.helpers.refusals import check_refused
from tests.helpers.stories import write_journal

SCRIPT = """
import os, time, warnings
from pathlib import Path
import nnlo_opt

t0, pid, LIMIT = time.time(), os.getpid(), int(os.environ["LIMIT"])
run_id, where = f"run-{pid}", Path(f"/tmp/run-{pid}")
history, best, calls = [pid], {"v": pid}, pid

def scaled(x):
    global calls
    calls += 1
    return x * LIMIT

def score(x):
    history.append(x)
    if x < best["v"]:
        best["v"] = x
    return scaled(x) + 0 * (time.time() - t0 + pid + len(run_id) + len(str(where)))

def main(goal=float(os.environ["LIMIT"]) * 0, most=int(os.environ["LIMIT"])):
    n = pid
    def objective(x):
        nonlocal n
        n += 1
        return score(x) + goal + most
    return objective

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for name, target in {"function": score, "lambda": lambda p: scaled(p["x"]) + 0 * t0, "closure": main()}.items():
        more = {"checkpoint": name, "opt_restore": True, "hyper_opt": "random"}
        before = len(nnlo_opt.load_run(f"checkpoints/{name}").trials) if Path(f"checkpoints/{name}").exists() else 0
        result = nnlo_opt.optimize(target, {"x": nnlo_opt.Real(0, 1)}, num_iterations=before + 2, **more)
        print(name, len(result.trials))
for warning in said:
    print(warning.category.__name__, warning.lineno, warning.message)
"""


#: the start of a script, whose runs have no reports
START = """
import runpy
from nnlo_opt.app.run.start import coordinate
from tests.helpers.reports_here import NoReporter
coordinate.Reporter = NoReporter
runpy.run_path("mine.py", run_name="__main__")
"""


@pytest.fixture
def started(preloaded, tmp_path):
    """Runs a script in a process of its own."""

    def run(text=SCRIPT, limit=3, code=0):
        (tmp_path / "mine.py").write_text(text)
        (tmp_path / "start.py").write_text(START)
        return preloaded.run(["python", "start.py"], tmp_path, code=code, LIMIT=str(limit))

    return run


def test_a_run_is_resumed_though_time_process_and_counters_differ_and_says_it(started):
    lines = started().out.splitlines()
    assert lines == ["function 2", "lambda 2", "closure 2"]
    lines = started().out.splitlines()
    assert lines[:3] == ["function 4", "lambda 4", "closure 4"]
    assert len(lines) == 6
    assert all(line.startswith("SearchWarning") for line in lines[3:])
    for name in ("`pid` was", "`t0` was", "`run_id`", "`where`"):
        assert name in lines[3], lines[3]
        assert (name in lines[4]) == ("t0" in name), lines[4]
    for name in ("calls", "history", "best", "`n`", "LIMIT", "run-"):
        assert not [line for line in lines[3:] if name in line], name
    lines = started(limit=4).out.splitlines()
    assert "`LIMIT` was 3 and is 4" in lines[3]
    assert "`most` was 3 and is 4" in lines[5]
    lines = started(limit=4).out.splitlines()
    assert "LIMIT" not in "".join(lines), "only what has changed since the last start is said"


def test_another_objective_is_refused_and_the_way_on_is_named(started):
    started()
    for old, new, words in (
        ("x * LIMIT", "x / LIMIT", "the function `scaled`, which `score` calls, has changed"),
        ("scaled(x) +", "1 + scaled(x) +", "the function `score` has changed"),
    ):
        assert SCRIPT.count(old) == 1
        err = started(SCRIPT.replace(old, new), code=1).err.splitlines()[-1]
        assert words in err
        assert 'learns from the trials of this one by `warm_start="checkpoints/function"`' in err
    more = '{"checkpoint": name + "-2", "warm_start": f"checkpoints/{name}"'
    text = SCRIPT.replace("x * LIMIT", "x / LIMIT").replace('{"checkpoint": name', more)
    started(text)


LIMIT = 3


def limited(x):
    return x * LIMIT


def test_a_run_of_an_older_version_is_resumed_by_the_fingerprint_that_it_has(tmp_path, monkeypatch):
    """An older version has one checksum of a function and all plain values that it names."""
    space, few = {"x": nnlo_opt.Real(0, 1)}, {"num_iterations": 2, "hyper_opt": "random", "checkpoint": tmp_path}
    more = {**few, "num_iterations": 4, "opt_restore": True}
    nnlo_opt.optimize(limited, space, **few, overwrite=True)
    events = read_events((tmp_path / JOURNAL_NAME).read_bytes(), "")[0]
    started = events[0]
    del started.identity["model"]["parts"], started.identity["model"]["notes"]
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    write_journal(tmp_path, events)
    monkeypatch.setitem(globals(), "LIMIT", 4)
    words = "the function `limited`, or a plain value that it names, has changed"
    check_refused(words, nnlo_opt.optimize, limited, space, **more)
    monkeypatch.setitem(globals(), "LIMIT", 3)
    assert len(nnlo_opt.optimize(limited, space, **more).trials) == 4
    monkeypatch.setitem(globals(), "LIMIT", 4)
    with pytest.warns(nnlo_opt.SearchWarning, match="`LIMIT` was 3 and is 4"):
        assert len(nnlo_opt.optimize(limited, space, **{**more, "num_iterations": 6}).trials) == 6


@pytest.mark.needs("nbclient")
def test_a_second_call_in_a_notebook_resumes_though_the_first_has_changed_its_globals(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    cells = (
        "import nnlo_opt, random\nfrom nnlo_opt import Real\ncalls, history, seen, limit = 0, [], {}, 3",
        "def objective(p):\n    global calls\n    calls += 1\n    history.append(p)\n    seen[calls] = p\n"
        "    return p['x'] * limit",
        "go = dict(hyper_opt='random', checkpoint='mine', opt_restore=True)",
        "print(len(nnlo_opt.optimize(objective, {'x': Real(0, 1)}, num_iterations=2, **go).trials))",
        "print(len(nnlo_opt.optimize(objective, {'x': Real(0, 1)}, num_iterations=4, **go).trials))",
        "limit = 4\nprint(len(nnlo_opt.optimize(objective, {'x': Real(0, 1)}, num_iterations=6, **go).trials))",
        "def objective(p):\n    return p['x']",
        "try:\n    nnlo_opt.optimize(objective, {'x': Real(0, 1)}, num_iterations=6, **go)\n"
        "except nnlo_opt.ConfigurationError as error:\n    print(error)",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [json.dumps(cell["outputs"]) for cell in notebook["cells"]]
    assert ["2" in said[3], "4" in said[4], "6" in said[5]] == [True] * 3
    assert "Warning" not in said[4]
    assert "`limit` was 3 and is 4" in said[5]
    assert "the function `objective` has changed" in said[7]
