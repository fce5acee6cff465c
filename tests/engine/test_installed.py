"""Parts that installed packages bring by name."""

import sys

import pytest

import nnlo_opt
from nnlo_opt.app.run.options.making import optimization_options
from nnlo_opt.app.run.options.of_journal import names_code
from nnlo_opt.engine.search.custom import custom_name
from tests.helpers.launcher import python
from tests.helpers.refusals import check_refused

SPIRAL = """
from nnlo_opt.extend import Downpour, first_new
import numpy as np


class Spiral:
    def __init__(self, space, seed):
        self.seed = seed

    def suggest(self, history):
        return first_new([], history, np.random.default_rng([self.seed, history.n_suggested]))


class Rule(Downpour):
    name = "spiral"
"""


def install(folder, package, module, text=SPIRAL):
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[nnlo_opt.search_algorithms]\nspiral = {module}:Spiral\n[nnlo_opt.update_rules]\nspiral = {module}:Rule\n"
    )


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("spiral_module", "broken_module"):
        sys.modules.pop(name, None)


def options(**given):
    return optimization_options({"model": "m.py", **given})


def test_a_package_brings_an_algorithm_and_a_rule(site):
    install(site, "nnlo-spiral", "spiral_module")
    made = options(hyper_opt="spiral", mode="spiral")
    assert "spiral_module" in sys.modules
    assert made.search.algorithm == made.training.mode == "spiral@nnlo-spiral"
    assert custom_name(made.search.algorithm).startswith("spiral of nnlo-spiral 1.0 (")
    result = nnlo_opt.optimize(lambda x: x, {"x": nnlo_opt.Real(0, 1)}, num_iterations=3, hyper_opt="spiral")
    assert len(result.trials) == 3


def test_an_unknown_name_gets_the_nearest_one(site):
    install(site, "nnlo-spiral", "spiral_module")
    check_refused("Did you mean `spiral`?", options, hyper_opt="spirall")
    assert "spiral_module" not in sys.modules


def test_two_packages_of_one_name_are_refused(site):
    install(site, "nnlo-spiral", "spiral_module")
    install(site, "other-spiral", "broken_module")
    check_refused("nnlo-spiral and other-spiral", options, hyper_opt="spiral")
    assert options(hyper_opt="spiral@other-spiral").search.algorithm == "spiral@other-spiral"


def test_a_package_that_fails_to_import_is_a_sentence(site):
    install(site, "nnlo-spiral", "broken_module", "1 / 0")
    check_refused("must import without an error. Received: nnlo-spiral", options, mode="spiral")


def test_a_name_of_a_package_in_a_journal_is_code():
    assert names_code("hyper_opt", "spiral")
    assert not names_code("hyper_opt", "sobol")


def test_what_extends_imports_no_mpi_pytest_or_framework():
    heavy = {"mpi4py", "pytest", "keras", "torch", "tensorflow", "jax"}
    python(f"import sys, nnlo_opt.extend; assert not {heavy} & set(sys.modules), sys.modules.keys()").expect(0)
