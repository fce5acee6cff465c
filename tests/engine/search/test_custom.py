import json
import sys
from pathlib import Path

import pytest

import nnlo_opt
from nnlo_opt import Real, Space
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.search.pruning import Decision, Pruner, Verdict
from nnlo_opt.engine.search.process import SearchProcess

pytestmark = pytest.mark.usefixtures("reports_here")

SPACE = Space([Real(-5, 5, name="x")])


class Middle:
    def __init__(self, *points):
        self.points = points

    def suggest(self, history):
        return self.points[history.n_suggested] if history.n_suggested < len(self.points) else None


class OtherMiddle(Middle):
    def suggest(self, history):
        return self.points[-1 - history.n_suggested]


class Strict(Pruner):
    def __init__(self, most=2):
        self.most = most

    def decide(self, trial, fold, epoch, reports):
        return Decision(Verdict.PRUNE, reason="enough") if epoch >= self.most else Decision(Verdict.GO_ON)


class Pausing(Strict):
    pauses = True


#: received by the search -> what a pruner does
WRONG = {
    "Decision.verdict=<Verdict.PRUNE": lambda: Decision(Verdict.PRUNE, "no good"),
    "Decision.verdict='prune'": lambda: Decision("prune", reason="no good"),
    "False": lambda: False,
    "ZeroDivisionError: .* line": lambda: 1 / 0,
}


class Judge(Strict):
    def decide(self, trial, fold, epoch, reports):
        return WRONG[self.most]()


class Broken(Middle):
    def suggest(self, history):
        return history.nothing if self.points else sys.exit("enough")


class Drawn:
    def __init__(self, space, seed):
        self.space, self.seed = space, seed

    def suggest(self, history):
        return None if history.n_suggested else self.space.middle()


class Narrow(Drawn):
    def __init__(self):
        raise ValueError("too narrow")


def searched(algorithm, **options):
    return nnlo_opt.optimize(lambda p: p["x"] ** 2, {"x": Real(-5, 5)}, hyper_opt=algorithm, **options)


def hyper_opt_of(run):
    return json.loads((run / "config.json").read_text())["hyper_opt"]


def test_an_object_is_the_search_until_it_has_no_other_point():
    result = searched(Middle({"x": 1.0}, {"x": 0.5}), num_iterations=9)
    assert [trial.parameters for trial in result.trials] == [{"x": 1.0}, {"x": 0.5}]


def test_a_class_is_made_as_that_of_a_file_is(tmp_path):
    result = searched(Drawn, num_iterations=9, checkpoint=tmp_path / "run")
    assert [trial.parameters for trial in result.trials] == [{"x": 0.0}]
    assert hyper_opt_of(tmp_path / "run").startswith("Drawn (")
    result = nnlo_opt.optimize(lambda x, report: report(2, x) and x, SPACE, pruner=Strict, num_iterations=1)
    assert [trial.state for trial in result] == ["pruned"]


def test_its_name_in_the_journal_tells_one_code_and_one_setting_from_another(tmp_path):
    names = []
    for number, algorithm in enumerate([Middle({"x": 1.0}), Middle({"x": 2.0}), OtherMiddle({"x": 1.0})]):
        algorithm.number = min(number, 1)
        searched(algorithm, num_iterations=1, checkpoint=tmp_path / str(number))
        names.append(hyper_opt_of(tmp_path / str(number)))
    assert len(set(names)) == 3
    searched(Middle({"x": 1.0}, {"x": 2.0}), num_iterations=2, checkpoint=tmp_path / "0", opt_restore=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hyper_opt": object()}, r"a method `suggest\(history\)`"),
        (
            {"hyper_opt": Narrow},
            r"created by `CLASS\(space, seed\)`\. Received: the class Narrow, which cannot be",
        ),
        ({"pruner": Drawn}, r"created by `CLASS\(\)`\. Received: the class Drawn, which cannot be called"),
        ({"pruner": Pausing}, "does not pause"),
        ({"hyper_opt": Middle({"y": 1.0})}, r"`Middle.suggest` must return a point .* wrong in 'y'\. "),
        ({"hyper_opt": Middle({"x": 9.0})}, r"Received: {'x': 9.0}, wrong in 'x'\. "),
        ({"hyper_opt": Middle(1.0)}, r"`Middle.suggest` must return a point"),
        ({"hyper_opt": Broken(1)}, "`Broken.suggest` must .* Received: AttributeError: .*nothing.*line"),
        ({"hyper_opt": Broken()}, "`Broken.suggest` must .* Received: SystemExit: enough .*line"),
        ({"hyper_opt": "nowhere.py:Mine"}, "no such file"),
        ({"hyper_opt": "nowhere.py"}, "grid, or FILE.py:CLASS. Received: nowhere.py"),
        ({"pruner": object()}, r"with a method `decide\("),
        ({"pruner": Pausing()}, "does not pause"),
        ({"pruner": Strict(), "pruner_min_epochs": 2}, r"`pruner_min_epochs` .* Received: Strict \("),
        ({"pruner": Strict(), "objective": ["a:min", "b:min"]}, "`pruner` stops trials by one objective"),
        ({"pruner": "nowhere.py:Mine"}, "`pruner` must be .* no such file"),
        ({"pruner": f"{__file__}:Mine"}, "no such class"),
        ({"pruner": f"{__file__}:Drawn"}, r"created by `CLASS\(\)`.* which cannot be called like that"),
        ({"pruner": f"{__file__}:Narrow"}, "with ValueError: too narrow .*line .* Correct the class"),
        ({"pruner": f"{__file__}:Pausing"}, "does not pause"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(given, words):
    with pytest.raises(ConfigurationError, match=words), nnlo_opt.Study(SPACE, num_iterations=2, **given) as study:
        study.ask()


@pytest.mark.parametrize(("pruner", "other"), [(Strict(), Strict(most=3)), (f"{__file__}:Strict", f"{__file__}:Judge")])
def test_a_pruner_of_ones_own_decides_and_another_one_may_not_resume_the_run(pruner, other, tmp_path):
    run = {"num_iterations": 2, "checkpoint": tmp_path / "run"}
    with nnlo_opt.Study(SPACE, pruner=pruner, **run) as study:
        trial = study.ask()
        assert [trial.report(epoch, 1.0) for epoch in (1, 2)] == [True, False]
        study.tell(trial, 1.0)
    assert study.result.trials[0].state == "pruned"
    with pytest.raises(ConfigurationError, match=r"`pruner` differs: it was [^{]*Strict \(.*, now [^{]* \("):
        nnlo_opt.Study(SPACE, pruner=other, opt_restore=True, **run)
    with nnlo_opt.Study(SPACE, pruner=pruner, opt_restore=True, **run) as study:
        assert study.ask().number == 1


def test_a_resume_names_the_setting_of_the_pruner_that_differs(tmp_path):
    run = {"num_iterations": 2, "checkpoint": tmp_path / "run"}
    nnlo_opt.Study(SPACE, pruner="asha", **run).close()
    changes = {"`pruner_eta` differs: it was 3, now 4": {"pruner": "asha", "pruner_eta": 4}}
    changes |= {"`pruner` differs: it was asha, now median": {"pruner": "median"}, "asha, now not given": {}}
    for words, given in changes.items():
        with pytest.raises(ConfigurationError, match=words):
            nnlo_opt.Study(SPACE, opt_restore=True, **given, **run)


@pytest.mark.parametrize("received", WRONG)
def test_a_wrong_answer_of_a_pruner_ends_the_search_with_a_sentence(received):
    with pytest.raises(ConfigurationError, match=rf"`Judge.decide` must return .* Received: {received}"):
        nnlo_opt.optimize(lambda x, report: x * report(1, x), SPACE, pruner=Judge(received), num_iterations=2)


def test_the_search_process_makes_the_class_of_a_file():
    search = SearchProcess()
    try:
        search.start(f"{__file__}:Drawn", SPACE, 0, {})
        for name, words in {"Nothing": "no such class", "Narrow": r"`CLASS\(space, seed\)`"}.items():
            with pytest.raises(ConfigurationError, match=words):
                search.start(f"{__file__}:{name}", SPACE, 0, {})
    finally:
        search.close()


def test_a_changed_file_has_another_name_in_the_journal(tmp_path):
    for number in range(2):
        (tmp_path / "mine.py").write_text(Path(__file__).read_text() + f"\n# {number}\n")
        searched(f"{tmp_path}/mine.py:Drawn", num_iterations=1, checkpoint=tmp_path / str(number))
    assert hyper_opt_of(tmp_path / "0") != hyper_opt_of(tmp_path / "1")
