import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.driver_parsers import driver_parser, normalise
from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.app.run.options.comparing import check_objectives
from nnlo_opt.app.run.options.pruning import pruning_for
from nnlo_opt.app.run.options.table import LOG_LEVELS
from nnlo_opt.app.run.options.values import SearchOptions, budget_text
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import printable
from nnlo_opt.core.trials.objectives import Comparison, Objective, OutcomeConstraint
from nnlo_opt.engine.runtime.devices import GpuRequest
from nnlo_opt.space import Integer, Space
from tests.helpers.refusals import check_refused

PROGRAMS = ("OptimizationDriver", "TrainingDriver")
BOTH = {program: partial(driver_options, program) for program in PROGRAMS}
MODEL = ["--model", "m.py"]


def search(*arguments):
    return driver_options("OptimizationDriver", [*MODEL, *arguments])


def train(*arguments):
    return driver_options("TrainingDriver", [*MODEL, *arguments])


#: returns the one sentence with which a call is refused
refused = partial(check_refused, "")


def value_at(options, path):
    for name in path.split("."):
        options = options[name] if isinstance(options, dict) else getattr(options, name)
    return options


# ---------------------------------------------------------------- every option

SGD = ("--optimizer=sgd", "--optimizer-params={'momentum': 0.9}")
#: (option and value, where it ends up, as what)
COMMON = [
    (["--model", "x.py"], "model", "x.py"),
    (["--train-data", "a/train.list"], "data.train_data", Path("a/train.list")),
    (["--fresh-weights"], "fresh_weights", True),
    (["--val-data", "val.list"], "data.val_data", Path("val.list")),
    (["--test-data", "test.list"], "data.test_data", Path("test.list")),
    (["--features-name", "X"], "data.features_name", "X"),
    (["--labels-name", "y"], "data.labels_name", "y"),
    (["--class-weights", "{0: 1, 1: 5.5}"], "data.class_weights", {0: 1.0, 1: 5.5}),
    (["--sample-weights-name", "w"], "data.sample_weights_name", "w"),
    (["--memory-limit", "3"], "data.memory_bytes", 3 << 20),
    (["--preload-data", "0"], "data.n_ahead", 0),
    (["--verify-data"], "data.verify_data", True),
    (["--external-data"], "data.external_data", True),
    (["--cache-data", "/fast"], "data.cache", Path("/fast")),
    (["--loss", "mean_squared_error"], "training.loss", "mean_squared_error"),
    (["--backend", "torch"], "backend", "torch"),
    (["--keras-backend", "jax"], "keras_backend", "jax"),
    (["--max-gpus", "0"], "gpus.max_gpus", 0),
    (["--master-gpu"], "gpus.master_gpu", True),
    (["--monitor"], "monitor", True),
    (["--timeline"], "timeline", True),
    (["--thread-validation"], "model", "m.py"),
    (["--batch", "32"], "training.batch", 32),
    (["--epochs", "7"], "training.epochs", 7),
    (["--mode", "downpour"], "training.mode", "downpour"),
    (["--synchronous"], "training.synchronous", True),
    (["--sync-every", "3"], "training.sync_every", 3),
    (["--optimizer", "rmsprop"], "training.optimizer", "rmsprop"),
    (["--learning-rate", "1e-3"], "training.learning_rate", 1e-3),
    (["--lr", "1e-3"], "training.learning_rate", 1e-3),
    (["--optimizer-params", "{'momentum': 0.9}"], "training.optimizer_params", {"momentum": 0.9}),
    (["--weight-decay", "0.01"], "training.weight_decay", 0.01),
    (["--no-decay", "bias|norm"], "training.no_decay", "bias|norm"),
    (["--clip-norm", "1"], "training.clip_norm", 1.0),
    (["--global-clip-norm", "2.5"], "training.global_clip_norm", 2.5),
    (["--clip-value", "0.5"], "training.clip_value", 0.5),
    (["--ema", "0.99"], "training.ema", 0.99),
    (["--warmup-epochs", "0.5"], "training.warmup_epochs", 0.5),
    (["--warmup-epochs", "10%"], "training.warmup_epochs", "10%"),
    (["--lr-schedule", "step:2:0.1"], "training.lr_schedule", "step:2:0.1"),
    (["--early-stopping", "val_loss,~<,4"], "training.early_stopping", "val_loss,~<,4"),
    (["--target-metric", "val_acc,>,0.97"], "training.target_metric", "val_acc,>,0.97"),
    (["--n-processes", "2"], "n_processes", 2),
    (["--n-masters", "3"], "n_masters", 3),
    (["--exchange", "messages"], "training.exchange", "messages"),
    (["--overlap"], "training.overlap", True),
    (["--no-overlap"], "training.overlap", False),
    (["--staleness", "drop:3"], "training.staleness", "drop:3"),
    (["--momentum-correction", *SGD], "training.momentum_correction", True),
    (["--worker-optimizer", "adam"], "training.worker_optimizer", "adam"),
    (["--worker-optimizer-params", "{'beta_1': 0.5}"], "training.worker_optimizer_params", {"beta_1": 0.5}),
    (["--elastic-force", "0.5"], "training.of_rules.elastic_force", 0.5),
    (["--elastic-lr", "1.0"], "training.of_rules.elastic_lr", 1.0),
    (["--elastic-momentum", "0.9"], "training.of_rules.elastic_momentum", 0.9),
    (["--gem-lr", "0.1"], "training.of_rules.gem_lr", 0.1),
    (["--gem-momentum", "0.5"], "training.of_rules.gem_momentum", 0.5),
    (["--gem-kappa", "1.0"], "training.of_rules.gem_kappa", 1.0),
    (["--no-shuffle"], "training.shuffle", False),
    (["--checkpoint", "my-run"], "run.name", "my-run"),
    (["--trial-name", "mine"], "trial_name", "mine"),
    (["--checkpoint-interval", "5"], "training.checkpoint_interval", 5),
    (["--grace", "7.5"], "grace_s", 7.5),
    (["--hang-timeout", "0"], "hang_timeout_s", 0.0),
    (["--max-attempts", "5"], "plan.max_attempts", 5),
    (["--overwrite"], "run.overwrite", True),
    (["--seed", "42"], "seed", 42),
    (["--quiet"], "quiet", True),
    (["--log-level", "warn"], "log_level", "warn"),
    (["--log-level=warn"], "quiet", True),
    (["--log-file", "out.log"], "log_file", Path("out.log")),
    (["--on-end", "true"], "on_end", "true"),
    (["--mirror", "optuna"], "mirror", ("optuna",)),
    (["--verbose"], "log_level", "debug"),
]
START_POINTS = ({"x": 1e-3, "shape": [8, 16], "how": None, "name": "relu"},)
SEARCH = [
    (["--search-space", "spaces/mine.py"], "search_space", "spaces/mine.py"),
    (["--fix", "n_units=8"], "fix", {"n_units": "8"}),
    (["--hyper-opt", "random"], "search", SearchOptions(algorithm="random")),
    (["--ga-populations=6", "--hyper-opt=genetic"], "search.population", 6),
    (["--grid-points=3", "--hyper-opt=grid"], "search.grid_points", 3),
    (["--surrogate=et", "--hyper-opt=bayesian-skopt"], "search.surrogate", "et"),
    (["--acquisition=pi", "--hyper-opt=bayesian-skopt"], "search.acquisition", "pi"),
    (["--start-point", "x=1e-3,shape=(8, 16),how=None,name=relu"], "search.start_points", START_POINTS),
    (["--warm-start", "runs/one"], "search.warm_start", (Path("runs/one"),)),
    (["--num-iterations", "25"], "plan.num_iterations", 25),
    (["--block-size", "4"], "block_size", 4),
    (["--n-fold", "5"], "plan.n_fold", 5),
    (["--fold-by", "files"], "data.fold_by", "files"),
    (["--direction", "max"], "plan.direction", "max"),
    (["--objective", "val_accuracy:max"], "plan.direction", "max"),
    (["--objective-epoch", "best"], "comparison.epoch", "best"),
    (["--outcome-constraint", "n_weights<9"], "comparison.constraints", (OutcomeConstraint("n_weights", "<", 9.0),)),
    (["--figure-of-merit", "f.py:f"], "comparison.function", "f.py:f"),
    (["--timeout", "90.5"], "plan.budget.timeout_s", 90.5),
    (["--trial-timeout", "0:10:00"], "plan.budget.trial_timeout_s", 600.0),
    (["--walltime", "1:30:05"], "walltime_s", 5405.0),
    (["--walltime", "90m"], "walltime_s", 5400.0),
    (["--walltime", "1.5h"], "walltime_s", 5400.0),
    (["--walltime", "30s"], "walltime_s", 30.0),
    (["--grace", "2m"], "grace_s", 120.0),
    (["--hang-timeout", "1:00:00"], "hang_timeout_s", 3600.0),
    (["--stop-after-no-improvement", "7"], "plan.budget.n_without_improvement", 7),
    (["--max-failures", "3"], "plan.budget.n_alike_failures", 3),
    (["--target-objective", "0.02"], "plan.target_objective", 0.02),
    (["--pruner", "median"], "plan.pruning.name", "median"),
    (["--pruner-eta=4", "--pruner=asha"], "plan.pruning.eta", 4),
    (["--pruner-min-epochs=2", "--pruner=hyperband"], "plan.pruning.min_epochs", 2),
    (["--pruner-min-trials=7", "--pruner=median"], "plan.pruning.min_trials", 7),
    (["--pruner-max-epochs=9", "--pruner=asha"], "plan.pruning.max_epochs", 9),
    (["--fold-racing", "--n-fold=3"], "plan.fold_racing", True),
    (["--keep-weights", "best:10"], "keep_weights", 10),
    (["--keep-weights", "all"], "keep_weights", None),
    (["--opt-restore"], "run.restore", True),
    (["--example", "mnist"], "model", "m.py"),
]
TRAINING = [(["--restore", "my-run"], "run.name", "my-run")]
ALL = [
    *(("OptimizationDriver", *row) for row in (*COMMON, *SEARCH)),
    *(("TrainingDriver", *row) for row in (*COMMON, *TRAINING)),
]


@pytest.mark.parametrize(("program", "words", "path", "value"), ALL, ids=lambda v: v if isinstance(v, str) else None)
def test_every_option_ends_up_where_it_belongs_however_it_is_written(program, words, path, value):
    option, *rest = words
    name, equals, given = option.partition("=")
    underscored = name.replace("-", "_").replace("__", "--", 1) + equals + given
    spellings = [words, [underscored, *rest]]
    if rest and not rest[0].startswith("--"):
        spellings.append(["=".join([underscored, *rest])])
    for spelling in spellings:
        assert value_at(BOTH[program]([*MODEL, *spelling]), path) == value


def options_of(parser):
    """Option -> its action, without those that are not shown."""
    return {
        option: action
        for action in parser._actions
        if action.help is not argparse.SUPPRESS
        for option in action.option_strings
        if option != "-h"
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_tables_above_leave_no_option_out(program):
    covered = {arguments[0].partition("=")[0] for name, arguments, _, _ in ALL if name == program}
    # `--model` stands in all tables
    of_search = {"--command", "--command-folder", "--command-own", "--report-pattern", "--result-pattern"}
    of_search |= {"--try-output", "--join"}
    elsewhere = {"--from-run"} if program == "TrainingDriver" else of_search
    elsewhere |= {"--help", "--help-all", "--copy-command", "--options"}
    assert covered | elsewhere == set(options_of(driver_parser(program)))


def test_defaults_of_a_search():
    options = search()
    assert (options.block_size, options.plan.num_iterations, options.plan.n_fold) == (2, 10, 1)
    assert (options.search.algorithm, options.search_space, options.plan.direction) == ("bayesian", None, "min")
    assert (options.data.fold_by, options.plan.target_objective) == ("samples", None)
    assert (options.run.root, options.run.name, options.run.restore) == (Path("checkpoints"), None, False)


@pytest.mark.parametrize("parse", [search, train])
def test_defaults_of_a_training(parse):
    options = parse()
    training = options.training
    assert (training.batch, training.epochs, training.optimizer, training.learning_rate) == (100, 1, "adam", None)
    assert (training.mode, training.synchronous, training.sync_every) == ("downpour", False, 1)
    assert (training.shuffle, training.checkpoint_interval, training.loss) == (True, 1, None)
    assert (training.warmup_epochs, training.lr_schedule) == (0.0, "constant")
    assert (options.seed, options.log_level, options.log_file, options.quiet) == (0, "info", None, False)
    assert (options.gpus, options.monitor, options.timeline, options.remarks) == (GpuRequest(), False, False, ())
    assert options.trial_name == "train"
    assert options.data.train_data is options.data.features_name is None


@pytest.mark.parametrize("parse", [search, train])
def test_samples_are_held_and_weighted_as_they_are_unless_asked_otherwise(parse):
    data = parse().data
    assert (data.cache, data.copy_command, data.memory_bytes, data.n_ahead) == (None, None, None, 1)
    assert (data.class_weights, data.sample_weights_name) == (None, None)
    assert parse("--class-weights", "balanced").data.class_weights == "balanced"


@pytest.mark.parametrize("parse", [search, train])
def test_a_command_that_copies_goes_with_a_folder(parse, monkeypatch):
    monkeypatch.delenv("DATA_CACHE", raising=False)
    data = parse("--cache-data", "/fast", "--copy-command", "cp -p '{}' {}").data
    assert (data.cache, data.copy_command) == (Path("/fast"), ("cp", "-p", "{}", "{}"))
    assert "`--cache-data`" in refused(parse, "--copy-command", "cp {} {}")
    assert "`--copy-command`" in refused(parse, "--cache-data", "/fast", "--copy-command", "cp {}")
    assert "not found" in refused(parse, "--cache-data", "/fast", "--copy-command", "no-such-program {} {}")


def test_the_environment_says_where_to_copy_and_how_unless_the_command_line_does(monkeypatch):
    monkeypatch.setenv("DATA_COPY_COMMAND", "dd if={} of={}")
    monkeypatch.delenv("DATA_CACHE", raising=False)
    assert train().data.copy_command is None
    monkeypatch.setenv("DATA_CACHE", "/fast")
    assert (train().data.cache, train().data.copy_command) == (Path("/fast"), ("dd", "if={}", "of={}"))
    data = train("--cache-data", "/other", "--copy-command", "cp {} {}").data
    assert (data.cache, data.copy_command) == (Path("/other"), ("cp", "{}", "{}"))
    monkeypatch.setenv("DATA_COPY_COMMAND", "dd")
    assert "`DATA_COPY_COMMAND`" in refused(train)


def test_folders_of_a_command_need_a_command_and_names_at_the_top():
    command = ["--command", f"{sys.executable} {{args}}"]
    own = driver_options("OptimizationDriver", [*command, "--command-own", "a", "runs/", "a"]).command
    assert (own.folder, own.own) == (None, ("a", "runs"))
    empty = driver_options("OptimizationDriver", [*command, "--command-folder", "empty", "--command-own", "a"]).command
    assert (empty.folder, empty.own) == ("empty", ("a",))
    assert "`--command-own` and no `--command`" in refused(search, "--command-own", "a")
    assert "`--command-folder` and no `--command`" in refused(search, "--command-folder", "here")
    parse = partial(driver_options, "OptimizationDriver")
    assert "one of links, here, empty" in refused(parse, [*command, "--command-folder", "hear"])
    for name in ("a/b", "..", "./a", ""):
        assert "a name at the top of the folder" in refused(parse, [*command, "--command-own", name])
    assert "with `--command-folder here`" in refused(
        parse, [*command, "--command-folder", "here", "--command-own", "a"]
    )


def test_the_command_line_is_kept_as_it_was_given():
    given = [*MODEL, "--train_data=a_b.list", "--early", "val_loss,<,3"]
    assert driver_options("TrainingDriver", given).command_line == tuple(given)


# ---------------------------------------------------------------- spelling


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_may_be_shortened_while_that_is_unambiguous(program):
    parser = driver_parser(program)
    known = set(parser._option_string_actions)
    n_shortened = 0
    for option, action in options_of(parser).items():
        for end in range(4, len(option)):
            prefix = option[:end]
            if prefix not in known and [name for name in known if name.startswith(prefix)] == [option]:
                assert _action_of(parser._parse_optional(prefix)) is action
                n_shortened += 1
    assert n_shortened > 50


def _action_of(found):
    """What argparse answers: a tuple, or (in later versions of Python) a list of one."""
    return found[0][0] if isinstance(found, list) else found[0]


def test_the_short_forms_that_recipes_use():
    assert train("--early", "val_loss,<,4").training.early_stopping == "val_loss,<,4"
    assert train("--checkpoint-int", "3").training.checkpoint_interval == 3
    assert train("--checkpoint_int=3").training.checkpoint_interval == 3
    assert train("--train", "t.list", "--val", "v.list").data.train_data == Path("t.list")
    assert train("--sync-e", "2").training.sync_every == 2
    assert search("--num-it", "3", "--block", "5", "--n-fo", "2").plan.num_iterations == 3
    assert train("--checkpoint", "c").run.name == "c"  # a whole name, though another option begins with it


def test_an_ambiguous_prefix_is_refused_with_what_it_may_mean():
    assert "--check could match --checkpoint, --checkpoint-interval" in refused(train, "--check", "3")


@pytest.mark.parametrize("parse", [search, train])
@pytest.mark.parametrize("argument", ["--num-iteratons", "--block-sice=3", "extra", "-x", "", " "])
def test_an_unknown_argument_is_refused_by_its_name(parse, argument):
    sentence = refused(parse, argument)
    assert "Every argument must be an option of" in sentence
    assert argument.strip() in sentence


def test_a_misspelled_option_is_answered_with_the_right_one():
    assert "Did you mean `--num-iterations`?" in refused(search, "--num-iteratons", "3")
    assert "`TrainingDriver --help`" in refused(train, "--zzz")


def test_options_of_the_search_are_unknown_to_a_training():
    for option in ("--block-size", "--search-space", "--n-fold", "--opt-restore", "--num-iterations"):
        assert option in refused(train, option, "2")


def test_only_names_of_options_are_respelled_never_values():
    given = ["--train_data", "my_list", "--loss=a_b", "-x_y", "plain_text", "--log_file=a_b=c_d"]
    assert normalise(given) == ["--train-data", "my_list", "--loss=a_b", "-x_y", "plain_text", "--log-file=a_b=c_d"]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("option", ["--help-all", "--help-a"])
def test_the_whole_help_names_every_option_its_default_an_example_and_both_spellings(program, option):
    text = help_of(program, option)
    for name in options_of(driver_parser(program)):
        assert name in text
    assert program in text
    assert "%(default)s" not in text
    assert "(default: 100, example: 64)" in text
    assert "Options may be written with - or _" in text


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_common_options_fits_a_screen_and_leads_to_all_options(program, option, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(program, option).splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) < 80
    assert {"  --epochs EPOCHS", "  --checkpoint NAME"} <= {line.split("   ")[0].rstrip() for line in lines}
    assert not [line for line in lines if "--gem-kappa" in line]
    assert lines[-1].endswith(": --help-all")


def test_the_help_of_the_gan_names_its_options_and_asks_for_no_model():
    text = driver_parser("MPIGDriver").common_help()
    assert text.startswith("usage: mpirun -np RANKS MPIGDriver [options]\n")
    assert "--gen-weight" in text
    assert "--model" not in text


def help_of(program, option):
    with pytest.raises(HelpRequested) as request:
        BOTH[program]([option])
    return str(request.value)


# ---------------------------------------------------------------- wrong values

WRONG = [
    ("--batch", ["0", "-1", "1.5", "x", "", "nan", "1e3"], "a whole number of samples, at least 1"),
    ("--epochs", ["0", "-1", "two", "inf"], "a whole number of epochs, at least 1"),
    ("--sync-every", ["0", "x"], "a whole number of batches, at least 1"),
    ("--checkpoint-interval", ["0", "x"], "a whole number of epochs, at least 1"),
    ("--grace", ["0", "nan", "x"], "a time of at least 1 s, in seconds or as 90m"),
    ("--hang-timeout", ["-1", "nan", "inf", "x"], "a time of at least 0 s, in seconds or as 90m"),
    ("--max-attempts", ["0", "-1", "1.5", "x"], "a whole number, at least 1"),
    ("--seed", ["-1", "x", "0.5"], "a whole number, at least 0"),
    ("--max-gpus", ["-1", "all", "1.5", ""], "a whole number of GPUs, at least 0"),
    ("--warmup-epochs", ["-1", "nan", "inf", "x", "", "101%", "%"], "a finite number of epochs, at least 0"),
    ("--warmup-epochs", ["1.5", "2"], "at most `--epochs`, which is 1"),
    ("--lr-schedule", ["", "cos", "step", "step:1", "step:0:0.1", "exponential:2", "linear:1"], "one of constant, "),
    ("--learning-rate", ["0", "-0.1", "nan", "inf", "x", "-0.001"], "a finite number above 0"),
    ("--weight-decay", ["-1", "nan", "x"], "a finite number, at least 0"),
    ("--no-decay", ["(", "[a"], "a regular expression, such as"),
    ("--clip-norm", ["0", "-1", "inf", "x"], "a finite number above 0"),
    ("--global-clip-norm", ["0", "x"], "a finite number above 0"),
    ("--clip-value", ["0", "x"], "a finite number above 0"),
    ("--ema", ["1", "1.5"], "at least 0 and below 1"),
    ("--optimizer", ["sgdx", "", "Adam"], "one of sgd, adam, adamw, nadam, rmsprop, adagrad, adadelta, lion"),
    ("--mode", ["down", ""], "one of downpour"),
    ("--exchange", ["memory", ""], "one of auto, messages"),
    ("--memory-limit", ["-1", "1.5", "x", ""], "a whole number of MiB, at least 0"),
    ("--preload-data", ["-1", "x"], "a whole number, at least 0"),
    ("--backend", ["tf"], "one of keras, torch"),
    ("--keras-backend", ["tf"], "one of tensorflow, jax, torch"),
    ("--log-level", ["loud"], f"one of {', '.join(LOG_LEVELS)}"),
    ("--class-weights", ["", "x", "{}", "{'a': 1}", "{0: 1", "[1]", "{1.5: 1}"], "balanced, or a dictionary"),
    ("--class-weights", ["{0: 1, 1: -1}", "{0: 1e999}", "{0: 'x'}"], "a finite number, at least 0"),
    ("--optimizer-params", ["x", "[1]", "{1: 2}", "{[1]: 2}", "{'a': open}", "{'a'", ""], "a dictionary"),
    ("--optimizer-params", ["1" * 5000, "(" * 500, "{'a': 1}\0"], "a dictionary"),
]
TIME = "a time above 0, in seconds or as 90m, 2h or 1:30:00"
WRONG_SEARCH = [
    ("--num-iterations", ["0", "-5", "x"], "a whole number, at least 1"),
    ("--n-fold", ["0", "x"], "a whole number, at least 1"),
    ("--block-size", ["0", "-2", "2.0"], "a whole number of ranks, at least 1"),
    ("--objective", ["val_loss", "val_loss:up", ":min", "x:"], "a metric and its direction"),
    ("--outcome-constraint", ["a", "<1", "a<", "a=1", "a<nan", "a<inf", "a<1e999", "a<b", "a::b<1"], "a finite number"),
    ("--objective-epoch", ["first", "1"], "one of last, best"),
    ("--direction", ["up"], "one of min, max"),
    ("--timeout", ["0", "-1", "nan", "inf", "x", "1:60:00"], TIME),
    ("--walltime", ["0", "-1", "nan", "1:00", "1:00:00:00", "m", "-2h", "infs", "2 d"], TIME),
    ("--stop-after-no-improvement", ["0", "-1", "1.5", "nan"], "a whole number, at least 1"),
    ("--target-objective", ["nan", "inf", "-inf", "x", ""], "a finite number"),
]


def cases(table):
    return [pytest.param(o, v, rule, id=f"{o}={v[:20]!r}") for o, values, rule in table for v in values]


def unsaid(parse, option, value, rule):
    """What the refusal of this value lacks."""
    sentence = refused(parse, f"{option}={value}")
    return [part for part in (f"`{option}`", rule, "Received: ", printable(value)) if part not in sentence]


@pytest.mark.parametrize("parse", [search, train])
@pytest.mark.parametrize(("option", "value", "rule"), cases(WRONG))
def test_a_wrong_value_is_refused_in_one_sentence_with_rule_and_value(parse, option, value, rule):
    assert unsaid(parse, option, value, rule) == []


@pytest.mark.parametrize(("option", "value", "rule"), cases(WRONG_SEARCH))
def test_a_wrong_value_of_the_search_is_refused_in_one_sentence_with_rule_and_value(option, value, rule):
    assert unsaid(search, option, value, rule) == []


def test_a_number_too_large_for_a_float_is_still_a_whole_number():
    assert train("--seed", "9" * 400).seed == int("9" * 400)


@pytest.mark.parametrize("value", ["-0.5", "-1", "-1e-3", "-.5", "-1E6"])
def test_a_negative_figure_is_a_value_and_not_an_option(value):
    assert search("--target-objective", value).plan.target_objective == float(value)
    assert search(f"--target-objective={value}").plan.target_objective == float(value)


@pytest.mark.parametrize("parse", [search, train])
def test_an_option_of_the_reference_that_changes_nothing_is_said_to(parse):
    (remark,) = parse("--thread-validation").remarks
    assert "`--thread-validation` changes nothing" in remark


@pytest.mark.parametrize("option", ["--batch", "--model", "--checkpoint", "--loss", "--optimizer-params"])
def test_an_option_without_its_value_is_refused_by_name(option):
    assert f"`{option}`" in refused(train, option)


def test_a_flag_with_a_value_is_refused_by_name():
    assert "`--synchronous`" in refused(train, "--synchronous=yes")


WITHOUT_MODEL = [("TrainingDriver", argv) for argv in ([], ["--epochs", "2"], ["--model", ""])]


@pytest.mark.parametrize(("program", "argv"), [*WITHOUT_MODEL, ("OptimizationDriver", ["--model", ""])])
def test_a_command_without_a_model_is_refused_with_what_a_model_may_be(program, argv):
    sentence = refused(BOTH[program], argv)
    assert "`--model` must name a model" in sentence
    assert "Received: nothing" in sentence


def test_an_example_serves_where_no_model_is_given():
    assert driver_options("OptimizationDriver", ["--example", "mnist"]).model == "mnist"
    assert driver_options("OptimizationDriver", ["--example", "mnist", "--model", "m.py"]).model == "m.py"


def test_restore_belongs_to_a_training_and_the_search_says_what_to_give_instead():
    for arguments in (["--restore"], ["--restore", "x"], ["--restore=x"]):
        assert "`--opt-restore`" in refused(search, *arguments)
    assert "restore" not in options_of(driver_parser("OptimizationDriver"))


# ---------------------------------------------------------------- the run


@pytest.mark.parametrize(
    ("arguments", "root", "name"),
    [
        ([], "checkpoints", None),
        (["--checkpoint", "a"], "checkpoints", "a"),
        (["--trial-name", "t"], "checkpoints", "t"),
        (["--checkpoint", "a", "--trial-name", "t"], "checkpoints", "a"),
        (["--checkpoint", "runs/a"], "runs", "a"),
        (["--checkpoint", "/data/runs/a"], "/data/runs", "a"),
        (["--checkpoint", "./a"], ".", "a"),
        (["--checkpoint", "runs/a/"], "runs", "a"),
        (["--checkpoint", ""], "checkpoints", None),
    ],
)
@pytest.mark.parametrize("parse", [search, train])
def test_a_run_lies_where_its_name_says(parse, arguments, root, name):
    run = parse(*arguments).run
    assert (run.root, run.name) == (Path(root), name)


@pytest.mark.parametrize("name", [".", "..", "/", "runs/..", "a b", "runs/.hidden"])
@pytest.mark.parametrize("parse", [search, train])
def test_a_place_that_is_no_name_is_refused(parse, name):
    sentence = refused(parse, "--checkpoint", name)
    assert "`--checkpoint`" in sentence
    assert "plain file name" in sentence


def test_a_trial_name_is_no_path():
    assert "'a/b'" in refused(train, "--trial-name", "a/b")


@pytest.mark.parametrize(
    ("arguments", "root", "name", "restore"),
    [
        ([], "checkpoints", None, False),
        (["--restore"], "checkpoints", None, True),
        (["--restore", "a"], "checkpoints", "a", True),
        (["--restore", "--checkpoint", "b"], "checkpoints", "b", True),
        (["--restore", "a", "--checkpoint", "b"], "checkpoints", "a", True),
        (["--restore", "runs/a"], "runs", "a", True),
    ],
)
def test_a_training_continues_the_run_that_restore_names(arguments, root, name, restore):
    run = train(*arguments).run
    assert (run.root, run.name, run.restore) == (Path(root), name, restore)


@pytest.mark.parametrize(("parse", "option"), [(search, "--opt-restore"), (train, "--restore")])
def test_resuming_and_overwriting_at_once_is_refused_by_the_commands_own_option(parse, option):
    sentence = refused(parse, option, "--checkpoint", "a", "--overwrite")
    assert f"`{option}`" in sentence
    assert "`--overwrite`" in sentence


# ---------------------------------------------------------------- what trials are compared by


def test_without_an_option_the_figure_of_merit_is_minimised():
    options = search()
    assert options.comparison.is_plain
    assert options.comparison.objectives == (Objective("figure_of_merit"),)
    assert options.plan.objectives == ()


def test_one_objective_is_the_figure_of_merit_and_several_are_a_plan_of_their_own():
    assert search("--objective", "val_acc:max").plan.objectives == ()
    options = search("--objective", "val_acc:max", "--objective", "n_weights:min")
    assert options.plan.objectives == (Objective("val_acc", "max"), Objective("n_weights"))
    assert options.plan.direction == "max"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objective", "a:min", "--objective", "a:max"], ["`--objective`", "'a' twice"]),
        (["--objective", "a:min", "--direction", "min"], ["`--direction`", "a:min"]),
        (["--objective=a:min", "--objective=b:min", "--target-objective=1"], ["`--target-objective`", "1 with 2"]),
        (["--objective", "n_weights:min", "--objective-epoch", "best"], ["`--objective-epoch best`", "n_weights"]),
        (["--objective", "val_loss:min", "--figure-of-merit", "f"], ["`--figure-of-merit`", "objectives without it"]),
    ],
)
def test_objectives_that_do_not_go_together_are_refused(arguments, words):
    sentence = refused(search, *arguments)
    assert all(word in sentence for word in [*words, "Received: "])


def test_an_objective_that_is_not_measured_is_refused_with_those_that_are():
    sentence = refused(check_objectives, search("--objective", "val_auc:max").comparison, ("loss", "val_loss"))
    assert all(name in sentence for name in ("loss, val_loss,", "n_weights", "train_s", "'val_auc'"))
    check_objectives(search("--objective", "val_loss:min", "--objective", "epoch_s:min").comparison, ("val_loss",))
    sentence = refused(check_objectives, search("--outcome-constraint", "val_auc>0.5").comparison, ("loss",))
    assert all(word in sentence for word in ("`--outcome-constraint`", "loss, ", "'val_auc'"))


def test_a_walltime_counts_from_the_start_it_is_of():
    budget = search("--timeout", "50").plan.budget.of_start(1000.0, -5.0)
    assert (budget.timeout_s, budget.deadline_s, budget.end_s) == (50.0, 995.0, 30.0)
    assert budget.of_start(None, 3.0) == budget
    assert budget_text(budget, 1000.0) == "50 s of searching, or 1000 s of walltime"
    assert budget_text(search().plan.budget, None) == ""


# ---------------------------------------------------------------- options of search algorithms


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--surrogate", "et"], "`--surrogate` is an option of `--hyper-opt bayesian-skopt`"),
        (["--acquisition", "ei", "--hyper-opt", "genetic"], "`--acquisition` is an option"),
        (["--ga-populations=5", "--hyper-opt=random"], "`--ga-populations` is an option of `--hyper-opt genetic`"),
        (["--ga-populations", "1", "--hyper-opt", "genetic"], "at least 2"),
        (["--surrogate", "nn", "--hyper-opt", "bayesian-skopt"], "gp, et, rf, gbrt. Received: nn"),
        (["--acquisition", "gp_hedge", "--hyper-opt", "bayesian-skopt"], "ei, lcb, pi. Received: gp_hedge"),
        (["--hyper-opt", "annealing"], "bayesian, freeze-thaw, bayesian-skopt, genetic, random, sobol, tpe, gp, cmaes"),
        (["--start-point", "x"], "`--start-point` must be written as name=value,name=value"),
        (["--pruner-eta", "3"], "`--pruner-eta` is for `--pruner asha` or `--pruner hyperband`"),
        (["--hyper-opt", "freeze-thaw", "--pruner-eta", "3"], "Received: `--hyper-opt freeze-thaw`; leave it out"),
        (["--hyper-opt", "freeze-thaw", "--pruner", "asha"], "Received: `--pruner asha` beside it"),
        (["--pruner", "median", "--pruner-max-epochs", "9"], "`--pruner-max-epochs` is for"),
        (["--pruner", "asha", "--pruner-min-trials", "9"], "`--pruner-min-trials` is for `--pruner median`"),
        (["--pruner", "none", "--pruner-min-epochs", "2"], "`--pruner none`; leave it out"),
        (["--pruner", "asha", "--pruner-eta", "1"], "at least 2. Received: 1"),
        (["--keep-weights=best"], "`--keep-weights` must be all, or best:N with a whole number N of at least 1. Rec"),
        (["--keep-weights", "best:0"], "Received: best:0."),
        (["--fold-racing"], "`--n-fold` must be at least 3. Received: 1"),
        (["--fold-racing", "--n-fold", "2"], "Received: 2"),
    ],
)
def test_options_of_another_algorithm_or_pruner_and_wrong_ones_are_refused(arguments, words):
    assert words in refused(search, *arguments)


def test_several_start_points_and_runs_may_be_given():
    given = search("--start-point", "x=1", "--start-point", "x=2", "--warm-start", "a", "b", "--warm-start", "c").search
    assert given.start_points == ({"x": 1}, {"x": 2})
    assert given.warm_start == (Path("a"), Path("b"), Path("c"))


# ---------------------------------------------------------------- giving up trials early


@pytest.mark.parametrize("option", [["--pruner", "asha"], ["--fold-racing", "--n-fold", "4"]])
def test_trials_with_several_objectives_are_not_given_up_by_the_first(option):
    sentence = refused(search, *option, "--objective", "val_loss:min", "--objective", "n_weights:min")
    assert f"`{option[0]}` stops trials" in sentence
    assert "Received: 2 objectives. Drop " in sentence
    assert search(*option, "--objective", "val_acc:max").plan.direction == "max"


SPACE = Space([Integer(1, 9, name="n")])
FOUND = Findings(model="m", kind="model", source="m.py", sha256="", figure="val_loss", space=SPACE)


@pytest.mark.parametrize(
    ("comparison", "figure", "words"),
    [
        (Comparison(function="f"), "f", "after every epoch. Received: `--pruner asha` with f;"),
        (Comparison(objectives=(Objective("n_weights"),)), "n_weights", "`--pruner asha` with n_weights;"),
        (Comparison(), "loss", "without validation data"),
    ],
)
def test_a_figure_that_no_epoch_shows_cannot_prune(comparison, figure, words):
    plan = search("--pruner", "asha").plan.pruning
    check_refused(words, pruning_for, plan, comparison, 9, replace(FOUND, figure=figure))


def test_epochs_of_a_metric_that_was_asked_for_can_prune_even_of_the_training_loss():
    plan = search("--pruner", "asha").plan.pruning
    by_loss = Comparison(objectives=(Objective("loss"),))
    assert pruning_for(plan, by_loss, 9, replace(FOUND, figure="loss")) == replace(plan, max_epochs=9)


@pytest.mark.parametrize(
    ("arguments", "epochs", "words"),
    [
        (["asha"], 2, "`--pruner asha` needs 3 epochs at least"),
        (["hyperband", "--pruner-eta", "2", "--pruner-min-epochs", "3"], 5, "`--pruner hyperband` needs 6 epochs"),
        (["median", "--pruner-min-epochs", "4"], 4, "`--pruner median` needs 5 epochs"),
    ],
)
def test_too_few_epochs_for_a_rung_are_refused(arguments, epochs, words):
    plan = search("--pruner", *arguments).plan.pruning
    sentence = check_refused(words, pruning_for, plan, Comparison(), epochs, FOUND)
    assert f"Received: {epochs}; raise `--epochs`, or lower `--pruner-min-epochs`" in sentence
    assert pruning_for(plan, Comparison(), epochs + 1, FOUND).max_epochs == epochs + 1
