import importlib
import sys
from pathlib import Path

import pytest

from nnlo_opt.engine.loading.spaces import load_space, space_from_dimensions
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused

ROOT = Path(__file__).parents[3]
OURS = "from nnlo_opt.space import Categorical, Integer, Real, Space\n"


@pytest.fixture
def skopt():
    """scikit-optimize, for those who need it: not each process that collects tests has to import scikit-learn."""
    return importlib.import_module("skopt.space")


def test_dimensions_of_scikit_optimize(skopt):
    numbers = [skopt.Real(1e-4, 1, "log-uniform", name="x"), skopt.Integer(2, 5, name="n")]
    space = space_from_dimensions([*numbers, skopt.Categorical(["a", None, 2], name="c")], "here")
    assert space == Space(
        [Real(1e-4, 1.0, "log-uniform", name="x"), Integer(2, 5, name="n"), Categorical(["a", None, 2], name="c")]
    )


def test_spaces_are_taken_whole(skopt):
    space = Space([Real(0, 1, name="x")])
    assert space_from_dimensions(space, "here") is space
    assert space_from_dimensions(skopt.Space([skopt.Real(0, 1, name="x")]), "here") == space


@pytest.mark.parametrize(
    ("dimensions", "words"),
    [
        (lambda skopt: [skopt.Real(0, 1)], "must have a name"),
        (lambda skopt: [(0, 1)], "must be one of Real, Integer, Categorical, Ordinal, Constant"),
        (lambda skopt: [skopt.Categorical(["a"], name="c")], "at least 2 categories"),
        (lambda skopt: [skopt.Categorical(["a", "b"], prior=[0.1, 0.9], name="c")], "equally likely"),
        (lambda skopt: [], "at least one parameter"),
        (lambda skopt: None, "must be a list"),
        (lambda skopt: {"x": (0, 1)}, "must be a list"),
        (lambda skopt: [skopt.Real(0, 1, name="x"), skopt.Real(0, 1, name="x")], "`x` more than once"),
    ],
)
def test_dimensions_that_are_refused(skopt, dimensions, words):
    assert "somewhere.py" in check_refused(words, space_from_dimensions, dimensions(skopt), "somewhere.py")


@pytest.mark.parametrize(
    "text",
    [
        OURS + "anything = [Real(0, 1, name='x')]",
        OURS + "a = b = (Real(0, 1, name='x'),)",
        OURS + "other = [Real(0, 2, name='x')]\nsearch_space = [Real(0, 1, name='x')]",
        OURS + "search_space = [Real(0, 2, name='x')]\nparameter_range = [Real(0, 1, name='x')]",
        OURS + "the_space = Space([Real(0, 1, name='x')])",
        OURS + "def get_model(x): ...\nget_model.parameter_range = [Real(0, 1, name='x')]",
        "from skopt.space import Real\nnumbers = [1, 2]\nranges = [Real(0, 1, name='x')]",
    ],
)
def test_the_one_list_is_found(write, text):
    assert load_space(write(text)) == Space([Real(0, 1, name="x")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 3", "must define a search space"),
        (OURS + "a = [Real(0, 1, name='x')]\nb = [Real(0, 2, name='x')]", "`a`, `b`"),
        (OURS + "space = []", "at least one parameter"),
        (OURS + "\nspace = [Real(1, 0, name='x')]", "my_space.py, line 3: `low` must be less"),
        ("import no_such_module", "line 1, ModuleNotFoundError: No module named"),
        ("x = 1\ndef f(:", "line 2, SyntaxError"),
        ("x = 1\n1 / 0", "line 2, ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("from skopt.space import Real\nspace = [Real(0, 1)]", "must have a name"),
    ],
)
def test_files_that_are_refused(write, text, words):
    assert "my_space.py" in check_refused(words, load_space, write(text))


def test_places_that_are_refused(write, tmp_path):
    (tmp_path / "folder").mkdir()
    write("", "notes/list.txt")
    for source in ("nothing.py", "folder/", "no.such.module", "nothing", "notes/list.txt", ".relative", ""):
        check_refused(repr(source), load_space, source)


def test_module_by_its_dotted_name(write):
    write("", "spaces_of_mine/__init__.py")
    write(OURS + "ranges = [Real(0, 1, name='x')]", "spaces_of_mine/first.py")
    write("1 / 0", "spaces_of_mine/broken.py")
    assert load_space("spaces_of_mine.first") == Space([Real(0, 1, name="x")])
    words = (
        "spaces_of_mine.broken' must import without an error. Received: ZeroDivisionError: division by zero (`spaces_of"
    )
    check_refused(words, load_space, "spaces_of_mine.broken")


def test_file_may_import_its_neighbour_and_shadows_nothing(write):
    write("low = 0.0", "neighbour_of_the_space.py")
    path = write(OURS + "import neighbour_of_the_space as n\nr = [Real(n.low, 1, name='x')]", "numpy.py")
    before = list(sys.path)
    assert load_space(path) == Space([Real(0, 1, name="x")])
    assert sys.path == before
    assert "numpy" in sys.modules
    assert sys.modules["numpy"].__file__ != str(Path(path).resolve())


def test_the_file_is_read_again_each_time(write):
    assert load_space(write(OURS + "r = [Real(0, 1, name='x')]")).names == ("x",)
    assert load_space(write(OURS + "r = [Real(0, 1, name='changed')]")).names == ("changed",)


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.py")), ids=lambda path: path.stem)
def test_spaces_of_the_project_load(path):
    space = load_space(str(path))
    assert space.model_names
    assert space.train_names


def test_a_space_file_is_a_regular_file_with_a_name_that_a_file_can_have(tmp_path, irregular):
    for path in (irregular(tmp_path / "space.py"), tmp_path / ("s" * 300 + ".py")):
        check_refused("is no file", load_space, str(path))
