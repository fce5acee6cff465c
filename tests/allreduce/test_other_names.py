"""Names of Horovod that do not exist here: what is said of them, and that the guide lists them."""

import re
from pathlib import Path

import pytest

import nnlo_opt.allreduce as hvd
from nnlo_opt.allreduce.other_names import ANSWERS, INSTEAD

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "horovod.md"


@pytest.mark.parametrize("name", ["elastic", "Adasum", "SyncBatchNorm", "no_such"])
def test_a_name_that_does_not_exist_is_an_error_that_says_what_to_take_instead(name):
    sentence = f"Horovod's `{name}` does not exist in nnlo_opt.allreduce: " + INSTEAD.get(name, "")
    text = sentence if name in INSTEAD else f"has no attribute '{name}'"
    assert not hasattr(hvd, name)
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(hvd, name)
    with pytest.raises(ImportError, match=re.escape(text) if name in INSTEAD else "cannot import name"):
        exec(f"from nnlo_opt.allreduce import {name}")


def test_what_is_said_of_a_name_names_nothing_that_does_not_exist_either():
    named = {name for text in INSTEAD.values() for name in re.findall(r"hvd\.(\w+)", text)}
    assert named
    assert not [name for name in named if not hasattr(hvd, name)]
    assert not [name for name in [*INSTEAD, *ANSWERS] if name in vars(hvd)]


def test_the_guide_lists_all_names():
    text = GUIDE.read_text(encoding="utf-8")
    public = [
        name for name, thing in vars(hvd).items() if name[0] != "_" and getattr(thing, "__module__", "") == hvd.__name__
    ]
    assert len(public) > 20
    assert not [name for name in [*INSTEAD, *ANSWERS, *public] if not re.search(rf"\b{name}\b", text)]
