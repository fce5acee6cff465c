"""How models are trained: the options of `config.TrainingOptions`, of teams and of update rules."""

import argparse
from dataclasses import fields

from nnlo_opt.cli.values import dictionary, finite, positive, whole
from nnlo_opt.training.options import TrainingOptions


def add_training(parser: argparse.ArgumentParser) -> None:
    """The options of `training_options_of`, and ranks of workers and masters."""
    defaults = TrainingOptions()
    group = parser.add_argument_group("training (may be searched too, as train.batch, train.learning_rate, …)")
    group.add_argument(
        "--batch",
        metavar="SAMPLES",
        type=whole(unit="samples"),
        default=defaults.batch,
        help="samples a worker takes for one gradient (default: %(default)s)",
    )
    group.add_argument(
        "--epochs",
        metavar="EPOCHS",
        type=whole(unit="epochs"),
        default=defaults.epochs,
        help="passes over the training data, counted over all workers (default: %(default)s)",
    )
    group.add_argument(
        "--mode",
        metavar="RULE",
        default=defaults.mode,
        help="update rule: downpour, easgd, gem, or allreduce, in which every rank trains (default: %(default)s)",
    )
    group.add_argument(
        "--synchronous",
        action="store_true",
        help="average the gradients of all workers (default: each at its own pace)",
    )
    group.add_argument(
        "--sync-every",
        metavar="BATCHES",
        type=whole(unit="batches"),
        default=defaults.sync_every,
        help="batches between two exchanges of a worker with its master (default: %(default)s)",
    )
    group.add_argument(
        "--optimizer",
        metavar="NAME",
        default=defaults.optimizer,
        help="at the master: sgd, adam, rmsprop or adadelta, with Keras's defaults (default: %(default)s)",
    )
    group.add_argument(
        "--learning-rate",
        metavar="RATE",
        type=positive,
        help="of the optimizer (default: the optimizer's own)",
    )
    group.add_argument(
        "--optimizer-params", metavar="DICT", type=dictionary, default={}, help="such as \"{'momentum': 0.9}\""
    )
    group.add_argument(
        "--warmup-epochs",
        metavar="EPOCHS",
        type=finite(0, "epochs"),
        default=defaults.warmup_epochs,
        help="epochs over which the learning rate rises linearly from 0 to its value; fractions allowed "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--lr-schedule",
        metavar="RULE",
        default=defaults.lr_schedule,
        help="constant, linear, cosine (both to 0 at the last epoch), exponential:RATE (times RATE each epoch) or "
        "step:EVERY:FACTOR (times FACTOR every EVERY epochs) (default: %(default)s)",
    )
    group.add_argument(
        "--early-stopping",
        metavar="RULE",
        help="metric,<,patience: stop after so many epochs without improvement and take the best weights; "
        "~< compares means of as many epochs; a metric of one output or model is name:metric, such as energy:val_loss",
    )
    group.add_argument(
        "--target-metric",
        metavar="RULE",
        help="metric,>,value: stop when the metric is past the value; a metric of one output or model is name:metric",
    )
    _add_update_rules(group, defaults)
    group.add_argument("--no-shuffle", action="store_true", help="keep the order of samples in every epoch")


def _add_update_rules(group: argparse._ArgumentGroup, defaults: TrainingOptions) -> None:
    group.add_argument(
        "--n-processes",
        metavar="RANKS",
        type=whole(unit="ranks"),
        default=1,
        help="ranks of a worker, which average their gradients before they push; not searchable (default: %(default)s)",
    )
    group.add_argument(
        "--n-masters",
        metavar="MASTERS",
        type=whole(unit="masters"),
        default=1,
        help="masters of a block: above 1 its first rank is a top master and the others are sub-masters, each of which "
        "leads a group of workers and is one worker to the top master; not searchable (default: %(default)s)",
    )
    group.add_argument(
        "--exchange",
        metavar="HOW",
        default=defaults.exchange,
        help="auto: workers that are all on their master's node move its weights themselves, in shared memory, where "
        "they do not wait for each other, and in allreduce a part of them each; messages: all is sent (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=defaults.overlap,
        help="a worker computes its next batch while the master answers, so that its gradients are a batch older; "
        "implies --exchange messages (default: with these, unless workers wait for each other)",
    )
    group.add_argument(
        "--staleness",
        metavar="POLICY",
        default=defaults.staleness,
        help="downpour: what counts an update that is n versions old: none (all), scale (1/(1+n)), or drop:N, nothing "
        "beyond N (default: %(default)s)",
    )
    group.add_argument(
        "--worker-optimizer",
        metavar="NAME",
        help="of a worker's own steps between exchanges (default: easgd: --optimizer; else sgd)",
    )
    group.add_argument(
        "--worker-optimizer-params", metavar="DICT", type=dictionary, default={}, help="as --optimizer-params"
    )
    group.add_argument(
        "--elastic-force",
        metavar="BETA",
        type=finite(),
        default=defaults.elastic_force,
        help="easgd: each of n workers is tied by BETA / n (default: %(default)s)",
    )
    group.add_argument(
        "--elastic-lr",
        metavar="RATE",
        type=finite(),
        help="easgd: of the workers' own steps (default: --learning-rate)",
    )
    group.add_argument(
        "--elastic-momentum",
        metavar="DELTA",
        type=finite(),
        default=defaults.elastic_momentum,
        help="easgd: Nesterov momentum of the workers' own steps, EAMSGD (default: %(default)s)",
    )
    group.add_argument(
        "--gem-lr",
        metavar="RATE",
        type=finite(),
        default=defaults.gem_lr,
        help="gem: of the worker; an update is scaled by up to 5 (default: %(default)s)",
    )
    group.add_argument(
        "--gem-momentum", metavar="MU", type=finite(), default=defaults.gem_momentum, help="gem (default: %(default)s)"
    )
    group.add_argument(
        "--gem-kappa",
        metavar="KAPPA",
        type=finite(),
        default=defaults.gem_kappa,
        help="gem: how much faster than one alone all workers may move the weights (default: %(default)s)",
    )


def training_options_of(arguments: argparse.Namespace) -> TrainingOptions:
    """The training that is asked for; ConfigurationError."""
    return TrainingOptions(
        shuffle=not arguments.no_shuffle,
        **{f.name: getattr(arguments, f.name) for f in fields(TrainingOptions) if f.name != "shuffle"},
    )
