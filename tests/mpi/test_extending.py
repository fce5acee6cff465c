"""The page "Extending": its examples are short, run, pass the suites that it names, and are taken by the drivers."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import nnlo_opt
from nnlo_opt.app.run.options.making import training_options
from nnlo_opt.app.run.options.space_checks import check_training, idle_options
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.engine.loading import installed as installed_parts
from tests.helpers import launcher, linear_teams
from tests.helpers.launcher import data_of, events_of
from tests.helpers.loopback_team import LoopbackTeam
from tests.helpers.networks import trained
from tests.helpers.refusals import check_refused
from tests.test_docs import FENCE, REPOSITORY

PAGE = (REPOSITORY / "docs/guide/extending.md").read_text()
#: its files, and those of the transport, which has no option
PAGES = PAGE + (REPOSITORY / "docs/reference/python.md").read_text().partition("### Transports\n")[2]
TEXTS = [text for language, text in FENCE.findall(PAGES) if text.startswith("# ") and language == "python"]
#: files of tests
SUITES = ("test_mine.py", "test_sign.py", "test_folder_transport.py")
#: name of a file, in its first line -> its text
FILES = {re.match(r"# (\S+)\n", text)[1]: text for text in TEXTS}


SPACE = """
from nnlo_opt.space import Integer

get_model.parameter_range = [Integer(4, 64, name="n_units")]
"""


@pytest.fixture
def files(here):
    """The working folder, with the files of the page."""
    for name, text in FILES.items():
        (here / name).write_text(text)
    return here


def test_a_custom_rule_is_in_no_table(files):
    known = dict(RULES)
    assert options_of("sign.py:SignSgd").rule.name == "sign"
    assert known == RULES


def test_examples_are_short():
    assert not [name for name, text in FILES.items() if len(text.splitlines()) > 40]


@pytest.mark.parametrize("name", FILES)
def test_an_example_runs(files, name, preloaded):
    preloaded.run(["python", name], files)


@pytest.mark.proof
def test_examples_pass_the_suites_that_the_page_names(files):
    pytest_words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SUITES]
    done = subprocess.run(pytest_words, cwd=files, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert not re.search("failed|error", done.stdout)


#: a pruner that looks at one curve, and two suites for it
ALONE = """
from nnlo_opt.core.search.pruning import Decision, Pruner, Verdict
from nnlo_opt.testing.pruner_conformance import CurvePrunerConformance, PrunerConformance


class Flat(Pruner):
    def decide(self, trial, fold, epoch, reports):
        curve = reports.curve(trial, fold)
        worse = epoch > 1 and curve.value_at(epoch) >= curve.value_at(epoch - 1)
        return Decision(Verdict.PRUNE, reason="no better") if worse else Decision(Verdict.GO_ON)


class TestFlat(CurvePrunerConformance):
    make = Flat


class TestAsIfItCompared(PrunerConformance):
    make = Flat
"""


def test_a_suite_for_pruners_of_single_curves_tells_what_it_found(here):
    (here / "test_flat.py").write_text(ALONE)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flat.py"]
    said = subprocess.run(words, cwd=here, check=False, timeout=120, capture_output=True, text=True).stdout
    assert "TestFlat::" not in said
    assert re.search(r"assert 'no better' == 'complete'", said)


#: rules that lack something, and two that lack nothing
HALVES = """
from nnlo_opt.core.update_rules.allreduce import Allreduce
from nnlo_opt.core.update_rules.downpour import Downpour, DownpourMaster
from nnlo_opt.core.update_rules.rule import UpdateRule
from sign import SignMaster, SignSgd


class Together(Allreduce):
    name = "together"


class Formula(SignSgd):
    takes_optimizer = False


class Constant(SignSgd):
    def base_learning_rate(self, options):
        return 0.125


class Mine(Downpour):
    name = "mine"
    takes_optimizer = False  # which is not true


class Fails(Downpour):
    name = "fails"

    def worker_half(self, options, n_weights):
        raise SystemExit


class NoName(SignSgd):
    name = None


class NoMaster(SignSgd):
    def master_half(self, options, n_weights, n_workers):
        pass


class NoWorker(SignSgd):
    def worker_half(self, options, n_weights):
        return 1 / 0


class NoRound(SignSgd):
    may_be_synchronous = True
    group_half = UpdateRule.group_half


class ClippingMaster(DownpourMaster):
    def apply(self, central, update, weight):
        super().apply(central, update.clip(-0.25, 0.25), weight)


class Clipping(Downpour):  # by messages alone: in shared memory `exchange_block` is that of Downpour
    name = "clipping"

    def master_half(self, options, n_weights, n_workers):
        return ClippingMaster(self.optimizer(options, n_weights))


class StillMaster(SignMaster):
    def apply(self, central, update, weight):
        central = central - self.rate * update


class Still(SignSgd):
    def master_half(self, options, n_weights, n_workers):
        return StillMaster(self.base_learning_rate(options))


class NoUpdate(SignSgd):
    def worker_half(self, options, n_weights):
        half = super().worker_half(options, n_weights)
        half.finish = lambda: None
        return half


class Doubles(SignSgd):
    def worker_half(self, options, n_weights):
        half = super().worker_half(options, n_weights)
        half.finish = lambda: half.gradient.astype(float)
        return half
"""


def options_of(mode, **more):
    return training_options({"model": "m.py", "mode": mode, **more}).training


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("workers", [1, 3, linear_teams.tree_of(4, 3)], ids=["one", "three", "a tree"])
def test_the_update_rule_trains(files, monkeypatch, shares, workers):
    monkeypatch.setattr(LoopbackTeam, "shares", shares)
    options = options_of("sign.py:SignSgd", batch=4, epochs=30, optimizer="sgd", learning_rate=0.01)
    losses = linear_teams.val_losses(linear_teams.trained(files, options, workers, seed=0))
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("sing", "`--mode` must be one of"),
        ("sign.py", "allreduce, or FILE.py:CLASS. Received: sign.py"),
        ("FILE.py:CLASS", "no such file"),
        ("nowhere.py:SignSgd", "no such file"),
        ("sign.py:Sign", "no such class"),
        ("sign.py:SignMaster", r"created by `CLASS()`"),
        ("worse_half.py:WorseHalf", "`nnlo_opt.extend.UpdateRule` with a `name`"),
        ("halves.py:NoName", "`nnlo_opt.extend.UpdateRule` with a `name`"),
    ],
)
def test_what_is_no_update_rule_is_refused(files, mode, words):
    (files / "halves.py").write_text(HALVES)
    check_refused(words, options_of, mode)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoMaster", ", None) of"),
        ("NoWorker", "ZeroDivisionError: "),
        ("NoUpdate", "by `finish` of its worker, a float32 vector that `apply` takes. Received: None of"),
        ("Doubles", "Received: float64 of shape (2,) for (2,) of"),
        ("Still", "change `central` or a vector of its `memory` in place by `apply`"),
    ],
)
def test_a_rule_without_its_halves_or_updates_is_refused_before_it_trains(files, name, words):
    (files / "halves.py").write_text(HALVES)
    check_refused(words, check_training, options_of(f"halves.py:{name}"))


def test_a_rule_that_the_options_ask_too_much_of_is_refused_before_it_trains(files):
    (files / "halves.py").write_text(HALVES)
    rounds = options_of("halves.py:NoRound", synchronous=True)
    check_refused("have `apply_round` at its master, or `may_be_synchronous = False`", check_training, rounds)
    assert check_training(options_of("halves.py:NoRound")) == (None, None)
    clipping = {"mode": "halves.py:Clipping", "optimizer": "sgd", "learning_rate": 1.0}
    check_refused("by `exchange_block`, which it may inherit", check_training, options_of(**clipping))
    assert check_training(options_of(**clipping, exchange="messages")) == (None, None)
    check_refused("which has no `group_half`", options_of("halves.py:NoRound").rule.check_groups, 3, 1)


def test_a_rule_without_updates_of_workers_or_without_an_optimizer_is_taken(files):
    (files / "halves.py").write_text(HALVES)
    assert check_training(options_of("halves.py:Together")) == (None, None)
    assert check_training(options_of("halves.py:Formula", learning_rate=0.1)) == (None, None)


@pytest.mark.parametrize(
    ("mode", "given", "steps_by", "line"),
    [
        ("sign.py:SignSgd", {"learning_rate": 0.1}, "", None),
        (
            "sign.py:SignSgd",
            {"learning_rate": 0.1, "optimizer": "sgd"},
            "",
            "`--optimizer` (the steps are those of sign)",
        ),
        ("sign.py:SignSgd", {"optimizer": "sgd"}, "", None),  # whose default is the learning rate
        ("halves.py:Formula", {"learning_rate": 0.1}, "", None),
        ("halves.py:Constant", {"learning_rate": 0.1}, "", "`--learning-rate` (the steps are those of sign)"),
        ("halves.py:Together", {"optimizer": "sgd", "learning_rate": 0.1}, "sgd", None),
        ("halves.py:Mine", {"optimizer": "sgd", "learning_rate": 0.1}, "sgd", None),
        ("halves.py:Fails", {"optimizer": "sgd"}, "sgd", None),
    ],
)
def test_a_line_names_an_optimizer_only_if_the_rule_makes_its_steps_by_it(files, mode, given, steps_by, line):
    """Without a word of the rule about it: what it does is measured."""
    (files / "halves.py").write_text(HALVES)
    options = options_of(mode, **given)
    assert options.steps_by(own=False) == steps_by
    assert idle_options(options, None) == ((f"Without effect here: {line}.",) if line else ())


@trained("dense", "torch")
@pytest.mark.mpi
@pytest.mark.proof
def test_the_drivers_take_what_is_named_by_file_and_class(files, network, digits):
    (files / "model.py").write_text(network.plain + SPACE)
    own = ["--hyper-opt", "climb.py:Climb", "--pruner", "worse_half.py:WorseHalf", "--mode", "sign.py:SignSgd"]
    search = ["OptimizationDriver", "--model", "model.py", *data_of(digits), *own, "--checkpoint", str(files / "run")]
    search += ["--num-iterations", "2"]
    outcome = launcher.run(4, search, files)
    assert "climb.py:Climb (" in outcome.out
    (started,) = events_of(files / "run", "RunStarted")
    assert started["identity"]["training"]["mode"].startswith("sign.py:SignSgd (")
    if network.suffix == ".pt":
        assert nnlo_opt.load_run(files / "run").best_model().training is False
    (files / "sign.py").write_text(FILES["sign.py"] + "\n")
    refused = launcher.run(4, [*search, "--num-iterations", "3", "--opt-restore"], files, code=2)
    assert "`--mode` differs: it was sign.py:SignSgd" in refused.err


FITTING = ["--optimizer", "sgd", "--lr", "0.05", "--batch", "10", "--epochs", "5"]


def line_data(printed):
    """Options for samples of a linear function with the weights 1, 2, 3, 4."""
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.save("x.npy", x)
    np.save("y.npy", x @ np.array([[1], [2], [3], [4]], np.float32))
    printed("from-arrays", "x.npy", "y.npy", program="GetData")
    return ["--train-data", "data/arrays/train_arrays.list", "--val-data", "data/arrays/test_arrays.list"]


@pytest.mark.proof
@pytest.mark.mpi
def test_the_model_adapter_is_trained_by_the_driver(files, printed):
    command = ["TrainingDriver", "--model", "linear_model.py", *line_data(printed), "--checkpoint", "run"]
    launcher.run(3, [*command, *FITTING], files)
    assert np.allclose(np.fromfile("checkpoints/run/best_model.weights", np.float32), [1, 2, 3, 4], atol=0.05)


#: a pruner, beside the algorithm, the rule and the exporter of the page, in the module of a package
PARTS = """
from climb import Climb
from json_lines import JsonLines
from nnlo_opt.extend import Decision, Pruner, Verdict
from sign import SignSgd


class Even(Pruner):
    def decide(self, trial, fold, epoch, reports):
        return Decision(Verdict.GO_ON if trial % 2 == 0 else Verdict.PRUNE, reason="odd")
"""
GROUPS = {"search_algorithms": "Climb", "update_rules": "SignSgd", "exporters": "JsonLines", "pruners": "Even"}


def installed(folder, version):
    """Lay out a package as pip would; its folder is to be in PYTHONPATH."""
    for name in ("climb.py", "sign.py", "json_lines.py", "linear.py", "linear_model.py"):
        (folder / name).write_text(FILES[name])
    (folder / "nnlo_parts.py").write_text(PARTS)
    info = folder / "nnlo_parts.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nnlo-parts\nVersion: {version}\n")
    entries = [f"[nnlo_opt.{group}]\nmine = nnlo_parts:{name}\n" for group, name in GROUPS.items()]
    entries.append("[nnlo_opt.frameworks]\nlinear = linear_model\n")
    (info / "entry_points.txt").write_text("".join(entries))


def test_the_project_of_the_page_installs_what_the_page_writes(files, monkeypatch):
    (text,) = (text for language, text in FENCE.findall(PAGE) if language == "toml")
    project = tomllib.loads(text)
    groups = project["project"]["entry-points"]
    points = [EntryPoint(name, value, group) for group in groups for name, value in groups[group].items()]
    monkeypatch.syspath_prepend(str(files))
    assert [point.load().__name__ for point in points] == ["Climb", "SignSgd", "JsonLines"]
    assert {point.module for point in points} == {*project["tool"]["setuptools"]["py-modules"]}
    assert groups.keys() <= {*installed_parts.GROUPS}


@pytest.fixture
def package(here, monkeypatch):
    """The folder of an installed package, version 1.0, on every rank's path."""
    site = here / "site"
    site.mkdir()
    installed(site, "1.0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    return site


@pytest.mark.proof
@trained("dense")
@pytest.mark.mpi
def test_an_installed_package_brings_its_parts_to_a_search(here, network, digits, package):
    (here / "model.py").write_text(network.slow)
    search = ["OptimizationDriver", "--model", "model.py", *data_of(digits), "--checkpoint", str(here / "run")]
    search += ["--hyper-opt", "mine", "--mode", "mine", "--mirror", "mine", "--num-iterations", "3"]
    search += ["--pruner", "mine", "--epochs", "2"]
    job = launcher.start(3, search, here)
    job.wait_for(here / "run", "TrialCompleted", 1)
    job.kill()
    launcher.run(3, [*search, "--opt-restore"], here)
    assert [event["trial"] for event in events_of(here / "run", "TrialPruned")] == [1]
    assert [event["trial"] for event in events_of(here / "run", "TrialCompleted")] == [0, 2]
    exported = [json.loads(line) for line in (here / "run/trials.jsonl").read_text().splitlines()]
    assert [line["state"] for line in exported] == ["complete", "pruned", "complete"]
    started = events_of(here / "run", "RunStarted")[0]
    assert started["identity"]["training"]["mode"].startswith("mine of nnlo-parts 1.0 (")
    installed(package, "1.1")
    refused = launcher.run(3, [*search, "--num-iterations", "4", "--opt-restore"], here, code=2)
    assert re.search(r"`--(mode|pruner)` differs: it was mine of nnlo-parts 1\.0", refused.err), refused.err


@pytest.mark.proof
@pytest.mark.mpi
def test_an_installed_package_brings_a_framework(here, package, printed):
    (here / "model.py").write_text("from linear import Linear\n\n\ndef get_model():\n    return Linear(4)\n")
    command = ["TrainingDriver", "--model", "model.py", *line_data(printed), "--checkpoint", "run", *FITTING]
    launcher.run(3, [*command, "--backend", "linear"], here)
    assert np.allclose(np.fromfile("checkpoints/run/best_model.weights", np.float32), [1, 2, 3, 4], atol=0.05)
