"""Checks of training options by themselves."""

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models import losses
from nnlo_opt.models.torch import losses as torch_losses
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.update_rules.optimizers import make_optimizer
from nnlo_opt.update_rules.staleness import StalenessPolicy


def check_training(options: TrainingOptions) -> tuple[EarlyStopping | None, TargetMetric | None]:
    """Raise ConfigurationError for options that are wrong for any model; return the rules for ending a training."""
    make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params)
    options.rule.worker_half(options, 1)
    StalenessPolicy.parse(options.staleness)
    if options.loss:
        for name in map(str.strip, options.loss.split(",")):
            try:
                torch_losses.check_loss(name)
            except ConfigurationError:  # the framework may not be known yet
                losses.check_loss(name)
    return (
        EarlyStopping.parse(options.early_stopping) if options.early_stopping else None,
        TargetMetric.parse(options.target_metric) if options.target_metric else None,
    )
