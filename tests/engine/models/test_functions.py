"""Functions `get_*` of a model module that nothing reads."""

import pytest

from nnlo_opt.engine.models.builders import TrialDefinition, open_model
from nnlo_opt.engine.models.functions import READ, refuse_functions_of_torch, refuse_unread
from tests.helpers.refusals import refusal

MODEL = "def get_model(n=3): return [n]\n"


@pytest.fixture
def module(tmp_path):
    def make(text: str) -> TrialDefinition:
        (tmp_path / "model.py").write_text(MODEL + text)
        return open_model(str(tmp_path / "model.py"))

    return make


@pytest.mark.parametrize(
    ("text", "name", "remedy"),
    [
        ("def get_metric(): return 'AUC'", "get_metric", "Call it `get_metrics`."),
        ("def get_callback(): return []", "get_callback", "Did you mean `get_callbacks`?"),
        ("def get_optim(): return 'adam'", "get_optim", "`--optimizer`"),
        ("def get_schedule(optimizer): return None", "get_schedule", "`--lr-schedule`"),
        ("def get_featurs(): return 'X'", "get_featurs", "Did you mean `get_features`?"),
        ("get_losses = lambda: 'mse'", "get_losses", "Did you mean `get_loss`?"),
        ("def get_dataset(): return 1\nif __name__ == '__main__': get_dataset()", "get_dataset", "`get_train` and"),
        ("def get_rest(n):\n    return n and get_rest(n - 1)", "get_rest", "begin the name of a helper with"),
    ],
)
def test_a_function_that_nothing_reads_is_refused_by_name(module, text, name, remedy):
    refusal(refuse_unread, module(text), says=[f"`{name}` of", remedy])


@pytest.mark.parametrize(
    "text",
    [
        "def get_block(n): return n\ndef get_name(): return str(get_block(3))",
        "def get_width(): return 3\nWIDTH = get_width()",
        "".join(f"def {name}(): return None\n" for name in READ if name not in ("get_model", "get_name")),
        "from os import get_terminal_size",
        "get_rid = 3",
        "class Net:\n    def get_callbacks(self): pass",
    ],
)
def test_what_is_read_called_or_no_function_of_the_module_is_not(module, text):
    refuse_unread(module(text))


@pytest.mark.parametrize(("name", "remedy"), [("get_optimizer", "`--optimizer`"), ("get_scheduler", "`--lr-schedule`")])
def test_optimizers_and_schedulers_are_of_torch_but_helpers_of_any_module(module, name, remedy):
    refuse_unread(definition := module(f"def {name}(of): return None"))
    refusal(refuse_functions_of_torch, definition, says=[f"`{name}` of", "calls for this model", remedy])
    refuse_functions_of_torch(module(f"def {name}(of): return None\ndef get_name(): return str({name}(3))"))
    refuse_functions_of_torch(module("def get_callbacks(): return []"))


def test_a_figure_of_merit_is_read(module):
    definition = module("def get_figure(fold): return 1.0")
    refuse_unread(definition, "get_figure")
    refuse_unread(definition, "model.py:get_figure")
    refusal(refuse_unread, definition, "other")


def test_an_import_from_another_file_counts_if_people_expect_an_effect(module, tmp_path):
    (tmp_path / "neighbour.py").write_text("def get_schedule(): return []\ndef get_other(): return []\n")
    refuse_unread(module("from neighbour import get_other"))
    refusal(refuse_unread, module("from neighbour import get_schedule"), says=["`get_schedule` of"])
