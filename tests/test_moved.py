"""Modules by the names that they had before."""

import importlib

import pytest

import nnlo_opt
import nnlo_opt.extend
from nnlo_opt.moved import KEPT, MOVED


@pytest.mark.parametrize("former", KEPT)
def test_a_module_that_is_kept_is_the_module_of_today(former):
    assert importlib.import_module(f"nnlo_opt.{former}") is importlib.import_module(f"nnlo_opt.{KEPT[former]}")


@pytest.mark.parametrize("former", MOVED)
def test_a_module_that_has_moved_says_where_its_names_are(former):
    with pytest.raises(ImportError, match=rf"`nnlo_opt.{former}` has moved: import {MOVED[former]} from"):
        importlib.import_module(f"nnlo_opt.{former}")
    assert all(hasattr(nnlo_opt.extend, name) for name in MOVED[former].split(", "))


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"nnlo_opt\.nothing"):
        importlib.import_module("nnlo_opt.nothing")
