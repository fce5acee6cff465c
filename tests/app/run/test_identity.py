import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.start.identity import (
    calls_back,
    check_same,
    identity_of,
    remark_on_schedule,
    remark_on_workers,
    settings_of,
    what_is_followed,
)
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.trials.identity import DataFiles, RunIdentity, ScriptFolders
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunRequest
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import check_refused
from tests.helpers.stories import START, suggested, trial

SPACE = Space([Integer(1, 8, name="n"), Real(1e-4, 1e-1, "log-uniform", name="train.learning_rate")])
FINDINGS = Findings(
    space=SPACE,
    model="mnist",
    kind="model",
    source="/home/me/mnist.py",
    sha256="0" * 64,
    data=DataFiles(files=(("/data/a.h5", 60), ("/data/b.h5", 40)), n_train=80, n_validation=20),
    loss="categorical_crossentropy",
    figure="1 - val_acc",
)


def identity(*arguments, **findings):
    options = driver_options("OptimizationDriver", ["--model", "mnist", *arguments])
    return identity_of(options, replace(FINDINGS, **findings))


def check(known, asked, **request):
    """What a resume does: the known identity comes from the journal."""
    run = RunRequest(root=Path("checkpoints"), name="a", restore=True, **request)
    check_same(RunIdentity.of(json.loads(json.dumps(known.plain))), asked, "checkpoints/a", run)


def difference(known, asked, **request):
    sentence = check_refused("`checkpoints/a`", check, known, asked, **request)
    assert "start a new run under another name" in sentence
    return sentence


def test_an_identity_is_plain_data_and_the_same_command_is_the_same_run():
    asked = identity("--optimizer-params", "{'beta_1': 0.5}", "--n-fold", "3")
    assert json.loads(json.dumps(asked.plain)) == asked.plain
    check(asked, identity("--optimizer-params", "{'beta_1': 0.5}", "--n-fold", "3"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-iterations", "50"],
        ["--block-size", "7"],
        ["--hyper-opt", "random"],
        ["--target-objective", "0.1"],
        ["--checkpoint-interval", "4"],
        ["--log-level", "debug"],
        ["--quiet"],
        ["--log-file", "x.log"],
        ["--opt-restore"],
        ["--trial-name", "other"],
        ["--memory-limit", "0"],
        ["--preload-data", "0"],
        ["--cache-data", "/fast"],
        ["--external-data"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_does_not_change_what_was_measured_may_change(arguments):
    check(identity(), identity(*arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--n-fold", "2"], "`--n-fold` differs: it was 1, now 2"),
        (["--fold-by", "files"], "`--fold-by` differs: it was samples, now files"),
        (["--direction", "max"], "`--direction` differs: it was min, now max"),
        (["--seed", "1"], "`--seed` differs: it was 0, now 1"),
        (["--batch", "32"], "`--batch` differs: it was 100, now 32"),
        (["--epochs", "3"], "`--epochs` differs: it was 1, now 3"),
        (["--learning-rate", "0.5"], "`--learning-rate` differs: it was not given, now 0.5"),
        (["--optimizer", "sgd"], "`--optimizer` differs: it was adam, now sgd"),
        (["--synchronous"], "`--synchronous` differs: it was False, now True"),
        (["--early-stopping", "val_loss,<,4"], "`--early-stopping` differs: it was not given, now val_loss,<,4"),
        (["--no-shuffle"], "`--no-shuffle` differs: it was False, now True"),
        (["--class-weights", "{1: 2, 0: 1}"], "`--class-weights` differs: it was not given, now {0: 1.0, 1: 2.0}"),
        (["--class-weights", "balanced"], "`--class-weights` differs: it was not given, now balanced"),
        (["--outcome-constraint", "n_epochs<9"], "`--outcome-constraint` differs: it was not given, now n_epochs<9"),
        (["--sample-weights-name", "w"], "`--sample-weights-name` differs: it was not given, now w"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_option_that_changes_what_is_measured_is_refused_by_its_name(arguments, words):
    assert words in difference(identity(), identity(*arguments))
    assert "`--opt-restore` resumes the same run only" in difference(identity(), identity(*arguments))


@pytest.mark.parametrize(
    ("both", "arguments", "words"),
    [
        ([], ["--objective-epoch", "best"], "`--objective-epoch` differs: it was last, now best"),
        (["--n-fold", "3"], ["--fold-racing"], "`--fold-racing` differs: it was False, now True"),
        (["--epochs", "9"], ["--pruner", "median"], "`--pruner` differs: it was not given, now median"),
    ],
)
def test_another_way_to_compare_or_to_end_trials_is_refused(both, arguments, words):
    assert words in difference(identity(*both), identity(*both, *arguments))


def test_another_point_of_a_training_is_refused():
    options = replace(driver_options("TrainingDriver", ["--model", "mnist"]), point={"n": 3})
    assert "`--from-run` differs: it was {}, now {'n': 3}" in difference(identity(), identity_of(options, FINDINGS))


def test_other_data_sets_of_the_same_files_are_refused():
    known = identity(features_name="x", labels_name="y")
    assert "`--features-name` differs: it was x, now z" in difference(
        known, identity(features_name="z", labels_name="y")
    )
    assert "`--labels-name` differs: it was y, now z" in difference(known, identity(features_name="x", labels_name="z"))


def test_class_weights_in_another_order_are_the_same():
    check(identity("--class-weights", "{1: 2, 0: 1}"), identity("--class-weights", "{0: 1.0, 1: 2.0}"))


def test_a_loss_that_was_inferred_otherwise_is_refused():
    sentence = difference(identity(), identity(loss="mean_squared_error"))
    assert "`--loss` differs: it was categorical_crossentropy, now mean_squared_error" in sentence


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (Space([Integer(1, 9, name="n"), *SPACE.parameters[1:]]), "n"),
        (Space([Categorical([1, 2], name="n"), *SPACE.parameters[1:]]), "n"),
        (Space([Real(1, 8, name="n"), *SPACE.parameters[1:]]), "n"),
        (Space(SPACE.parameters[:1]), "train.learning_rate"),
        (Space([*SPACE.parameters, Integer(1, 2, name="extra")]), "extra"),
        (Space([SPACE.parameters[0], Real(1e-4, 1e-1, name="train.learning_rate")]), "train.learning_rate"),
    ],
)
def test_another_search_space_is_refused_by_the_parameter_that_differs(space, name):
    assert f"the search space differs: parameter `{name}`" in difference(identity(), identity(space=space))


def test_the_order_of_parameters_is_no_difference():
    check(identity(), identity(space=Space(reversed(SPACE.parameters))))


def test_a_search_and_a_training_are_not_the_same_run():
    training = identity_of(driver_options("TrainingDriver", ["--model", "mnist"]), replace(FINDINGS, space=None))
    assert "there is a training, and this is a search" in difference(training, identity())
    assert "there is a search, and this is a training" in difference(identity(), training)
    check(training, copy.deepcopy(training))


def test_a_changed_model_file_is_refused_by_its_path_and_a_moved_one_is_not():
    sentence = difference(identity(), identity(sha256="1" * 64, source="/new/mnist.py"))
    assert "the model file has changed: `/home/me/mnist.py`, now `/new/mnist.py`" in sentence
    check(identity(), identity(source="/new/place/mnist.py"))


def data(files, n_train=80, n_validation=20):
    return DataFiles(files=tuple(map(tuple, files)), n_train=n_train, n_validation=n_validation)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (data([["/data/a.h5", 60], ["/data/b.h5", 41]], 81, 20), "there were 80 training and 20 validation samples"),
        (data([["/data/a.h5", 60], ["/data/c.h5", 40]]), "the first file that is not the same is `/data/b.h5`"),
        (data([["/data/b.h5", 40], ["/data/a.h5", 60]]), "the first file that is not the same is `/data/a.h5`"),
        (data([["/data/a.h5", 60], ["/data/b.h5", 40], ["/c.h5", 0]]), "the list of files is not the same"),
        (None, "one has data files and the other has none"),
        (
            DataFiles(n_train=80, n_validation=20, made={"get_train": "a"}),
            "they were files, now samples: see `get_train`",
        ),
    ],
)
def test_other_data_are_refused_by_what_differs(asked, words):
    assert words in difference(identity(), identity(data=asked))


def test_samples_that_a_function_returns_must_be_the_same():
    known, asked = (DataFiles(n_train=80, made={"get_train": "a", "get_val": found}) for found in "bc")
    assert "`get_val` returns other samples than before" in difference(identity(data=known), identity(data=asked))
    check(identity(data=known), identity(data=known))
    assert identity(data=known).data == known


def test_a_training_may_be_given_more_epochs_and_another_target():
    run = driver_options("TrainingDriver", ["--model", "mnist", "--restore", "a"]).run
    request = {"restore_option": run.restore_option, "may_change": run.may_change}
    check(identity(), identity("--epochs", "9", "--target-metric", "loss,<,0.1"), **request)
    sentence = difference(identity(), identity("--batch", "7"), **request)
    assert "`--restore` resumes the same run only" in sentence
    assert "`--batch` differs" in sentence


def test_an_option_that_a_later_version_added_is_no_difference():
    plain = identity().plain
    del plain["training"]["sync_every"]
    del plain["features_name"], plain["labels_name"], plain["class_weights"], plain["sample_weights_name"]
    known = RunIdentity.of(plain)
    check(known, identity())
    check(known, identity(features_name="x"))


def test_an_option_that_a_later_version_added_is_a_difference_if_it_changes_the_training():
    known = identity()
    training = {key: value for key, value in known.plain["training"].items() if key not in ("weight_decay", "ema")}
    before = RunIdentity.of({**known.plain, "training": training})
    check(before, identity())
    assert "`--weight-decay` differs: it was not given, now 0.1" in difference(
        before, identity("--weight-decay", "0.1")
    )


def test_what_a_search_began_with_may_be_left_out_but_not_be_another():
    known = identity("--warm-start", "runs/one", "runs/two")
    check(known, identity("--warm-start", "runs/one", "runs/two"))
    check(known, identity())
    assert "`--warm-start` differs: it was runs/one, runs/two, now runs/three" in difference(
        known, identity("--warm-start", "runs/three")
    )
    before = {key: value for key, value in identity().plain.items() if key != "warm_start"}
    assert "it was not given" in difference(RunIdentity.of(before), identity("--warm-start", "runs/one"))


@pytest.mark.parametrize(
    ("arguments", "idle", "used"),
    [
        ([], {"worker_optimizer", "gem_lr", "elastic_force"}, {"optimizer", "learning_rate"}),
        (["--mode", "gem"], {"optimizer", "optimizer_params", "learning_rate"}, {"gem_lr"}),
        (["--mode", "easgd"], {"gem_lr"}, {"optimizer", "worker_optimizer", "elastic_lr"}),
    ],
)
def test_the_settings_of_a_start_name_options_without_effect(arguments, idle, used):
    options = driver_options("OptimizationDriver", ["--model", "mnist", *arguments])
    found = replace(FINDINGS, space=Space([Integer(1, 8, name="n")]))
    named = settings_of(options, found, ScriptFolders(), "OptimizationDriver")["idle"]
    assert idle <= {*named}
    assert not used & {*named}


def test_a_run_of_a_compiled_model_says_so_and_one_that_does_not_goes_on_without(tmp_path):
    """A run of an earlier version took nothing from `compile`."""
    asked = identity(compiled=True, takes_optimizer=True, takes_metrics=True, metrics=("auc",))
    without_metrics = identity(compiled=True)
    run = RunRequest(root=tmp_path, name="a", restore=True)
    both = {"follows_compile": True, "follows_metrics": True, "follows_optimizer": True}
    assert what_is_followed(run) == both  # there is none: it begins now
    (tmp_path / "a").mkdir()
    for known, follows in ((asked, (True,) * 3), (without_metrics, (True, False, False)), (identity(), (False,) * 3)):
        (tmp_path / "a/journal.jsonl").write_text(json.dumps({"identity": known.plain}) + "\n")
        assert tuple(what_is_followed(run).values()) == follows
        assert what_is_followed(replace(run, restore=False)) == both
    assert identity().plain.keys().isdisjoint({"compiled", "metrics", "optimizer"})
    assert "metrics" not in without_metrics.plain
    check(identity(), identity())
    check(without_metrics, asked)


def test_a_run_with_callbacks_says_so_and_one_that_does_not_goes_on_without(tmp_path):
    """An earlier version did not call them."""
    run = RunRequest(root=tmp_path, name="a", restore=True)
    assert calls_back(run)
    (tmp_path / "a").mkdir()
    for known, follows in ((identity(calls_back=True), True), (identity(), False)):
        (tmp_path / "a/journal.jsonl").write_text(json.dumps({"identity": known.plain}) + "\n")
        assert calls_back(run) == follows
    check(identity(), identity())


def test_the_journal_has_what_was_said_of_compile():
    options = driver_options("OptimizationDriver", ["--model", "mnist"])
    said = {"replaced": "In place.", "taken": "", "unused": "Not taken."}
    settings = settings_of(options, replace(FINDINGS, **said), ScriptFolders(), "OptimizationDriver")
    assert settings["compile"] == ["In place.", "Not taken."]
    assert "compile" not in settings_of(options, FINDINGS, ScriptFolders(), "OptimizationDriver")


def test_where_a_schedule_in_an_optimizer_ends_is_said_after_a_change_of_ranks():
    ledger = Ledger()
    for event in (START.replaced(settings={"block_size": 4}), suggested(0)):
        ledger.apply(event)
    options = driver_options("OptimizationDriver", ["--model", "mnist", "--mode", "allreduce", "--block-size", "2"])
    found = replace(FINDINGS, n_train_smallest=1000, schedule="CosineDecay", n_scheduled=50)
    said = remark_on_schedule(ledger, options, found, n_ranks=9)
    # 1000 samples in batches of 100, on 2 ranks and on 4
    assert said.endswith("an epoch has 5 now instead of 3: of a training from its beginning it ends after 10 epochs.")
    endless = remark_on_schedule(ledger, options, replace(found, n_scheduled=None), n_ranks=9)
    assert endless == "CosineDecay counts steps, of which an epoch has 5 now instead of 3."
    assert not remark_on_schedule(ledger, replace(options, block_size=4), found, n_ranks=9)
    assert not remark_on_schedule(ledger, options, FINDINGS, n_ranks=9)


@pytest.mark.parametrize(
    ("mode", "was", "now", "ends", "says"),
    [
        ("easgd", 3, 4, False, True),
        ("easgd", 3, 3, False, False),
        ("easgd", 3, 4, True, False),
        ("easgd", None, 4, False, False),
        ("allreduce", 3, 4, False, False),
        ("downpour", 3, 4, False, False),
    ],
)
def test_workers_whose_own_optimizers_begin_afresh_are_said(mode, was, now, ends, says):
    ledger = Ledger()
    settings = {} if was is None else {"block_size": was}
    for event in (START.replaced(settings=settings), *(trial(0) if ends else [suggested(0)])):
        ledger.apply(event)
    options = driver_options("OptimizationDriver", ["--model", "mnist", "--mode", mode, "--block-size", str(now)])
    said = remark_on_workers(ledger, options, n_ranks=9)
    expected = "The last start trained on 3 ranks a block, this one trains on 4: trainings continue from the central "
    expected += "weights, and easgd's workers begin with a fresh state of their optimizers."
    assert said == (expected if says else "")
