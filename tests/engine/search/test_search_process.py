import json
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.engine.loading.spaces import load_space
from nnlo_opt.engine.search.handler import SearchHandler
from nnlo_opt.engine.search.process import InlineSearch, SearchProcess
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.testing.search_conformance import MIXED_SPACE
from tests.helpers import launcher
from tests.helpers.effort import some_of
from tests.helpers.refusals import check_refused

ROOT = Path(__file__).parents[3]
SPACE = Space([Real(0, 1, name="x"), Categorical([None, "a", [1, 2]], name="c")])
LONG_S = 60.0


@pytest.fixture(params=[SearchProcess, InlineSearch])
def search(request):
    search = request.param()
    yield search
    search.close()


@pytest.fixture
def process():
    with closing(SearchProcess()) as process:
        yield process


def pending(trial, point):
    return {"trial": trial, "point": point, "state": "pending", "value": None}


def answer(search):
    """The next answer, when it has come."""
    suggestion = launcher.seen_within(LONG_S, search.poll, every_s=1e-3)
    assert suggestion is not None
    return suggestion


def suggested(search, request=1):
    """The answer to a new request."""
    search.request_suggestion(request)
    return answer(search)


def test_suggestions_are_those_of_the_algorithm(search):
    search.start("random", MIXED_SPACE, 5, {})
    history = History(MIXED_SPACE)
    for trial in range(5):
        suggestion = suggested(search, 100 + trial)
        assert suggestion.request == 100 + trial
        assert suggestion.point == RandomSearch(MIXED_SPACE, 5).suggest(history)
        assert suggestion.cpu_s >= 0
        assert suggestion.wall_s >= 0
        for record in (
            pending(trial, suggestion.point),
            {"trial": trial, "point": suggestion.point, "state": "complete", "value": 1.0},
        ):
            history.record(**record)
            search.record([record])
    assert search.poll() is None


def test_requests_are_answered_in_their_order_by_what_was_recorded_before_each(search):
    search.start("random", SPACE, 1, {})
    search.request_suggestion(1)
    search.record([pending(0, {"x": 0.5, "c": [1, 2]})])
    search.request_suggestion(2)
    first, second = answer(search), answer(search)
    assert (first.request, second.request) == (1, 2)
    history = History(SPACE)
    assert first.point == RandomSearch(SPACE, 1).suggest(history)
    history.record(**pending(0, {"x": 0.5, "c": [1, 2]}))
    assert second.point == RandomSearch(SPACE, 1).suggest(history)


def test_exhaustion(search):
    space = Space([Integer(0, 1, name="n")])
    search.start("bayesian", space, 1, {})
    search.record([pending(0, {"n": 0}), pending(1, {"n": 1})])
    suggestion = suggested(search, 7)
    assert suggestion.request == 7
    assert suggestion.point is None


def test_spaces_are_loaded_and_prints_do_no_harm(search, tmp_path):
    path = tmp_path / "loud.py"
    path.write_text(
        "import os\nfrom nnlo_opt.space import Real\nprint('{\"ok\": false}')\nos.write(1, b'noise')\n"
        "ranges = [Real(0, 1, name='x')]\n"
    )
    assert search.load_space(str(path)) == Space([Real(0, 1, name="x")])
    check_refused("nothing.py", search.load_space, "nothing.py")
    assert search.load_space(str(path)).names == ("x",)


CONSTRAINED = """
import os
from nnlo_opt.space import Real
ranges = [Real(0, 1, name="x"), Real(0, 1, name="y")]
def feasible(parameters):
    return parameters["x"] + parameters["y"] < 0.5
"""


@pytest.fixture
def constrained(tmp_path):
    """A file with a space and its constraint."""
    path = tmp_path / "space.py"
    path.write_text(CONSTRAINED)
    return path


def test_a_constraint_stays_where_its_function_is(search, constrained):
    space = search.load_space(str(constrained))
    assert space.constraint.function is None
    search.start("random", space, 5, {})
    for number in range(20):
        point = suggested(search, number).point
        assert point["x"] + point["y"] < 0.5
        search.record([pending(number, point)])


def test_a_constraint_of_a_model_module_is_loaded_when_the_search_starts(search, tmp_path):
    path = tmp_path / "model.py"
    path.write_text("def get_model(x, y): ...\n" + CONSTRAINED.replace("ranges =", "get_model.parameter_range ="))
    space = Space.from_json(load_space(str(path)).to_json())  # as a trainer rank has read it
    search.start("random", space, 5, {})
    assert sum(suggested(search).point.values()) < 0.5
    path.write_text(path.read_text().replace("< 0.5", "< 0.6"))
    check_refused("model.py must be the same wherever it is read", search.start, "random", space, 5, {})


def test_a_point_that_the_constraint_refuses_is_declined_with_the_next_suggestion(search, constrained):
    search.start("random", search.load_space(str(constrained)), 5, {})
    for x in (0.375, 0.125):
        search.enqueue({"x": x, "y": 0.25})
    first, second = suggested(search), suggested(search)
    ((point, why),) = first.declined
    assert (point, second.declined) == ({"x": 0.375, "y": 0.25}, [])
    assert "x=0.375,y=0.25; the constraint of the space refuses it" in why
    assert first.point == {"x": 0.125, "y": 0.25}


def test_values_are_fixed_where_the_space_is_loaded(search, constrained):
    space = search.load_space(str(constrained), {"x": "0.25"})
    search.start("random", space, 5, {})
    point = suggested(search).point
    assert point["x"] == 0.25
    assert point["y"] < 0.25
    check_refused("`--fix x=`", search.load_space, str(constrained), {"x": "2"})


def breaks_down(path, does):
    """Have a constraint do something else as soon as there is a file, which is returned."""
    flag = path.with_name("broken")
    broken = f"    if os.path.exists({str(flag)!r}):\n        {does}\n    return"
    path.write_text(CONSTRAINED.replace("    return", broken))
    return flag


@pytest.mark.parametrize(
    ("answer", "words"),
    [("1 / 0", "ZeroDivisionError"), ("None", "Received: None"), ("False", "must accept some points")],
)
def test_a_constraint_that_breaks_down_during_the_search_is_a_sentence(search, constrained, answer, words):
    flag = breaks_down(constrained, f"return {answer}")
    search.start("random", search.load_space(str(constrained)), 5, {})
    flag.touch()
    check_refused(words, suggested, search)


def test_wrong_requests_are_sentences(search):
    for point, words in (({"depth": 3}, "`depth`, which is not a parameter"), ({"x": 99.0}, "x=99.0")):
        check_refused(words, search.start, "random", SPACE, 0, {"start_points": [point]})
    search.start("random", SPACE, 0, {})


def test_closing_twice(search):
    search.close()
    search.close()
    assert search.poll() is None


def test_a_suggestion_that_comes_while_another_answer_is_awaited_is_kept(process):
    process.start("random", SPACE, 0, {})
    process.request_suggestion(3)
    with pytest.raises(ConfigurationError):
        process.load_space("nothing.py")
    assert answer(process).request == 3


def test_a_long_history_never_blocks(process):
    n_trials = 20_000
    space = Space([Integer(0, 10**6, name="n")])
    process.start("random", space, 0, {})
    os.kill(process._process.pid, signal.SIGSTOP)  # from here on nobody reads
    try:
        process.record([pending(trial, {"n": trial}) for trial in range(n_trials)])
        process.request_suggestion(1)
        assert process.poll() is None
    finally:
        os.kill(process._process.pid, signal.SIGCONT)
    suggestion = answer(process)
    history = History(space)
    for trial in range(n_trials):
        history.record(**pending(trial, {"n": trial}))
    assert suggestion.point == RandomSearch(space, 0).suggest(history)


def test_a_dead_process_is_told_with_its_last_words(process, tmp_path):
    path = tmp_path / "deadly.py"
    path.write_text("import os, sys\nprint('the last words', file=sys.stderr, flush=True)\nos._exit(9)\n")
    with pytest.raises(ConfigurationError, match=r"deadly\.py.*status 9.*the last words"):
        process.load_space(str(path))
    with pytest.raises(NnloError, match="status 9"):
        process.request_suggestion(1)


def test_a_bug_in_the_records_is_told(process):
    process.start("random", SPACE, 0, {})
    process.record([{"trial": 0, "point": {"x": 7.0, "c": None}, "state": "pending", "value": None}])
    with pytest.raises(NnloError, match="`x`"):
        answer(process)


@pytest.mark.parametrize(
    ("strike", "words"), [(signal.SIGKILL, "status -9"), (signal.SIGSTOP, "`--hang-timeout`, 1 s")]
)
@pytest.mark.parametrize("asks_first", some_of([False, True]))
def test_a_process_that_is_killed_or_stopped_is_replaced_by_one_that_suggests_the_same(strike, words, asks_first):
    said, points = [], []
    with closing(SearchProcess(timeout_s=1.0, say=said.append)) as process, closing(InlineSearch()) as undisturbed:
        for search in (process, undisturbed):
            search.start("genetic", MIXED_SPACE, 5, {"population": 2})
            search.adopt([{"point": RandomSearch(MIXED_SPACE, 9).suggest(History(MIXED_SPACE)), "value": 2.0}])
            for trial in range(5):
                if trial in (2, 4) and search is process and not asks_first:
                    os.kill(process._process.pid, strike)
                search.request_suggestion(trial)
                if trial in (2, 4) and search is process and asks_first:
                    os.kill(process._process.pid, strike)
                suggestion = answer(search)
                assert suggestion.request == trial
                points.append(suggestion.point)
                end = {"trial": trial, "point": suggestion.point, "state": "complete", "value": 1.0 / (1 + trial)}
                search.record([pending(trial, suggestion.point), end])
    assert points[:5] == points[5:]
    assert len(said) == 2 or asks_first  # it may have answered before it was struck
    assert all(words in line for line in said)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("does", "words"), [("os._exit(9)", "status 9"), ("while True: pass", r"not answered .*line 7 in feasible")]
)
def test_a_process_that_fails_twice_at_a_suggestion_is_a_sentence(constrained, monkeypatch, does, words):
    flag, said = breaks_down(constrained, does), []
    with closing(SearchProcess(timeout_s=1.0, say=said.append)) as process:
        process.start("random", process.load_space(str(constrained)), 5, {})
        # It is stuck as soon as it starts again.
        monkeypatch.setattr("nnlo_opt.engine.search.process._START_TIMEOUT_S", 2.0)
        flag.touch()
        with pytest.raises(NnloError, match="like the one before it at this suggestion") as error:
            suggested(process)
        assert re.search(words, str(error.value).replace("\n", " "))
        assert len(said) == 1


def test_closing_ends_the_process(process):
    process.start("random", SPACE, 0, {})
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process._process.pid, 0)


def test_the_process_ends_with_its_parent():
    code = (
        "import os\nfrom nnlo_opt.engine.search.process import SearchProcess\nsearch = SearchProcess()\n"
        "print(search._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    pid = int(launcher.python(code, cwd=ROOT).out)
    assert launcher.seen_within(LONG_S, lambda: not is_running(pid))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_environment_has_no_mpi_and_threads_are_capped(tmp_path):
    path = tmp_path / "looks.py"
    path.write_text(
        "import os\nfrom nnlo_opt.space import Categorical\n"
        "mpi = [n for n in os.environ if n.startswith(('OMPI', 'PM'))]\n"
        "ranges = [Categorical([*mpi, os.environ['OMP_NUM_THREADS'], os.environ['KEPT']], name='seen')]\n"
    )
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "OMP_NUM_THREADS": "7", "KEPT": "kept"}
    with closing(SearchProcess(environment)) as process:
        assert process.load_space(str(path)).parameters[0].categories == ("1", "kept")


class FailingSearch:
    def suggest(self, history):
        raise RuntimeError("no idea")


def test_an_algorithm_that_raises_is_answered_with_its_traceback(monkeypatch):
    monkeypatch.setattr("nnlo_opt.engine.search.handler.make_search", lambda *_: FailingSearch())
    search = InlineSearch()
    search.start("failing", SPACE, 0, {})
    with pytest.raises(NnloError, match=r"(?s)Traceback.*no idea"):
        suggested(search)


def test_a_search_in_this_process_suggests_with_one_thread(monkeypatch):
    seen = []

    def n_threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    class WatchingSearch:
        def suggest(self, history):
            seen.append(n_threads())

    monkeypatch.setattr("nnlo_opt.engine.search.handler.make_search", lambda *_: WatchingSearch())
    search = InlineSearch()
    search.start("watching", SPACE, 0, {})
    with threadpool_limits(2):
        before = n_threads()
        suggested(search)
        assert (seen, n_threads()) == ([{1}], before)


def test_requests_and_answers_are_json():
    session = SearchHandler()
    start = {"op": "start", "algorithm": "random", "space": SPACE.to_json(), "seed": 0, "options": {}}
    assert session.handle(json.loads(json.dumps(start))) == {"ok": True, "remark": ""}
    answer = session.handle({"op": "suggest", "request": 1})
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    with pytest.raises(ValueError, match="must be load_space"):
        session.handle({"op": "stop"})
    with pytest.raises(ValueError, match="must be started"):
        SearchHandler().handle({"op": "record", "trials": []})
