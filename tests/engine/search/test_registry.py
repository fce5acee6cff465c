from pathlib import Path

import pytest

from nnlo_opt.core.search.base import History
from nnlo_opt.engine.search.handler import SearchHandler
from nnlo_opt.engine.search.registry import make_search, search_names
from nnlo_opt.space import Integer, Space
from tests.helpers.launcher import python

SPACE = Space([Integer(0, 99, name="n")])


#: algorithm -> packages of extras that it needs
NEEDED = {"tpe": ("optuna",), "gp": ("optuna", "torch"), "cmaes": ("cmaes",)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in search_names()]
)
def test_every_name_makes_a_search(name):
    assert SPACE.contains(make_search(name, SPACE, 0, {}).suggest(History(SPACE)))


def test_options_of_bayesian():
    algorithm = make_search("bayesian", SPACE, 0, {"n_initial_points": 3})
    history = History(SPACE)
    for trial in range(6):
        history.record(trial, algorithm.suggest(history), "complete", float(trial))
    assert history.n_distinct == 6


def test_random_search_does_not_import_scikit_optimize():
    code = (
        "import sys; from nnlo_opt.engine.search.registry import make_search; import nnlo_opt.engine.search.process;"
        "from nnlo_opt.space import Integer, Space; make_search('random', Space([Integer(0, 9, name='n')]), 0, {});"
        "print([name for name in ('skopt', 'sklearn', 'scipy', 'mpi4py') if name in sys.modules])"
    )
    assert python(code, cwd=Path(__file__).parents[3]).expect(0).out == "[]\n"


@pytest.mark.parametrize("n_objectives", [1, 2])
@pytest.mark.parametrize("name", [name for name in search_names() if name not in ("tpe", "gp", "cmaes")])
def test_every_search_continues_from_pruned_trials(name, n_objectives):
    session = SearchHandler()
    options = {"n_objectives": n_objectives} | ({"n_initial_points": 2} if name.startswith("bayesian") else {})
    start = {"op": "start", "algorithm": name, "space": SPACE.to_json(), "seed": 0, "options": options}
    assert session.handle(start) == {"ok": True, "remark": ""}
    suggested = []
    for trial in range(9):
        answer = session.handle({"op": "suggest", "request": trial})
        assert answer.get("error") is None
        suggested.append(answer["point"])
        state = "complete" if trial in (3, 4) else "pruned"
        record = {"trial": trial, "point": answer["point"], "state": state, "value": float(trial)}
        if n_objectives == 2 and state == "complete":
            record["losses"] = [float(trial), -float(trial)]
        session.handle({"op": "record", "trials": [record]})
    assert len({point["n"] for point in suggested}) == 9
