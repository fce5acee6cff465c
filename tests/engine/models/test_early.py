"""Model modules before a framework is imported; a package of the test stands for the framework."""

import importlib
import sys
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.models import early
from nnlo_opt.engine.models.early import read_early, without_framework

SPACE = "from nnlo_opt.space import Integer\n"
WHOLE = SPACE + "def get_model(n): pass\nget_model.parameter_range = [Integer(2, 9, name='n')]\n"
PART = "import slow\n" + WHOLE


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a model module beside a framework, and a package that imports it in the end; return the module's path."""
    monkeypatch.setattr(early, "PACKAGES", frozenset({"slow"}))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "slow.py").write_text("Model = object")
    (tmp_path / "hides").mkdir()
    (tmp_path / "hides" / "__init__.py").write_text("import hides.inner\nimport slow\n")
    (tmp_path / "hides" / "inner.py").write_text("")
    yield lambda text: [(tmp_path / "net.py").write_text(text), str(tmp_path / "net.py")][1]
    for name in ("slow", "hides", "hides.inner"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        (WHOLE, True),
        ("def late():\n import slow\n" + WHOLE, True),
        (PART, False),
        (PART.replace("(n)", "(n: slow.Tensor) -> slow.Model"), False),
        (PART.replace("pass", "return slow.Model(n)") + "if __name__ == '__main__': get_model(1)", False),
        (PART.replace("2, 9", "LOW, 9").replace("def", "LOW: int = 2\nslow.seed(7)\ndef"), False),
        (
            PART + "class Net(slow.Model): pass\ndef get_train(): return [__file__]\ndef get_loss(): return slow.loss",
            False,
        ),
        # What may be more than it seems is not executed twice.
        (PART.replace("2, 9", "slow.LOW, 9"), None),
        (PART + "get_model.parameter_range.append(1)", None),
        (PART + "for name in 'ab': get_model.parameter_range += [Integer(2, 9, name=name)]", None),
        (PART + "def get_train(): return slow.files()", None),
        (PART + "def feasible(p): return slow.fits(p)", None),
        (PART.replace("import Integer", "import Integer\nfrom slow import *"), None),
        ("import slow\nfrom slow import *", None),
    ],
)
def test_a_module_is_executed_as_far_as_it_needs_no_framework(module, text: str, is_whole: bool | None) -> None:
    with without_framework() as context:
        definition = read_early(module(text))
    assert not context.was_needed
    assert "slow" not in sys.modules
    if is_whole is None:
        assert definition is None
    else:
        assert definition is not None
        assert definition.is_whole is is_whole
        assert [parameter.low for parameter in definition.parameter_range] == [2]
        assert definition.required_parameters == {"n"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (PART + "def", "net.py, line 5, SyntaxError"),
        (PART + "return", "net.py, line 5, SyntaxError: 'return' outside function"),
        ("import slow\nimport no_such\n" + PART, "net.py, line 2, ModuleNotFoundError: No module named 'no_such'"),
        (PART.replace("2, 9", "9, 2"), r"net.py, line 4: `low` must be less than `high`"),
        (PART.replace("Integer(", "Intger("), "net.py, line 4, NameError: name 'Intger' is not defined"),
        (WHOLE.replace("pass", "'Net.'; import slow, os; import no_such"), r"net.py, .*'no_such' \(line 2\)"),
        (WHOLE.replace("Integer(", "Intger("), "net.py, line 3, NameError: name 'Intger' is not defined"),
    ],
)
def test_mistakes_are_found(module, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence), without_framework():
        read_early(module(text))


@pytest.mark.parametrize("line", ["import sys\nsys.path.append('x')", "import hides.inner"])
def test_a_module_may_say_itself_where_packages_are(module, line: str) -> None:
    with without_framework():
        read_early(module(f"{line}\nimport no_such\n{PART}"))


def test_nothing_counts_once_a_framework_was_wanted(module) -> None:
    """A package that imports it in the end is imported anew when the framework is there."""
    with without_framework() as context:
        read_early(module("try:\n import hides.inner\nexcept Exception: pass\n" + WHOLE))
    assert context.was_needed
    assert "hides.inner" not in sys.modules
    assert importlib.import_module("hides").inner
    with without_framework() as context:
        importlib.import_module("slow")  # it is there now
    assert not context.was_needed
