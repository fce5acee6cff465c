"""Training algorithm of a manager, converted to training options."""

from ast import literal_eval
from collections.abc import Mapping
from typing import Any

from nnlo_opt.app.run.options.space_checks import check_training
from nnlo_opt.core.base.errors import ConfigurationError, require_known
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.easgd import ELASTIC_FORCE
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS

#: mode in mpi_learn -> ours
_MODES = {"sgd": "downpour", "downpour": "downpour", "easgd": "easgd", "gem": "gem", "allreduce": "allreduce"}
# fmt: off
#: further argument of `Algo` -> training option; the last one given counts
_OPTIONS = {name: name for name in (
    "early_stopping", "gem_kappa", "gem_lr", "gem_momentum", "learning_rate", "lr_schedule", "momentum_correction",
    "overlap", "shuffle", "staleness", "synchronous", "target_metric", "warmup_epochs",
)} | {"lr": "learning_rate"}
#: the same for NNLO's optimizer `gem`, whose parameters are options here
_OPTIONS_OF_GEM = {
    **_OPTIONS, "learning_rate": "gem_lr", "momentum": "gem_momentum", "kappa": "gem_kappa", "lr": "gem_lr",
}
# fmt: on


class Algo:
    """Optimizer, loss and update rule of a training; an argument of `MPIManager`.

    >>> Algo("adam", loss="mse", lr=0.01, validate_every=100).options(n_workers=2, batch=10, epochs=5).learning_rate
    0.01

    Further arguments are options of `TrainingDriver` (`early_stopping`, `target_metric`, `synchronous`, `staleness`,
    `momentum_correction`, `overlap`, `warmup_epochs`, `lr_schedule`, `shuffle`, `gem_lr`, `gem_momentum`, `gem_kappa`;
    `TrainingDriver --help` describes them), or parameters of the optimizer with Keras's names and defaults. The
    learning rate is called `learning_rate` or `lr`.
    """

    def __init__(
        self,
        optimizer: str | None,
        loss: Any = None,
        validate_every: float | None = None,
        sync_every: int = 1,
        mode: str = "downpour",
        worker_optimizer: str | None = None,
        worker_optimizer_params: Mapping[str, Any] | str | None = None,
        elastic_force: float | None = None,
        elastic_lr: float | None = None,
        elastic_momentum: float = 0.0,
        **others: Any,
    ) -> None:
        """Check all arguments.

        Args:
            optimizer: optimizer at the master: sgd, adam or another; None in `easgd`, which has none.
            loss: a name, a function (y_true, y_pred), or a list or dict of them for several outputs; None to infer it
                from model and labels.
            validate_every: updates between two validations; 0 for no validation, None for one after every epoch.
                Everything counted in epochs (history, stopping rules, checkpoints, schedules) is then counted in
                validations. Workers that wait for each other always validate after every epoch.
            sync_every: batches of a worker between two exchanges.
            mode: downpour (or sgd), easgd, gem, allreduce.
            worker_optimizer: optimizer of local steps, in easgd and with `sync_every`; None for sgd.
            worker_optimizer_params: parameters of `worker_optimizer`.
            elastic_force: alpha of easgd, the paper's beta divided by the number of workers; None for 0.9 / workers.
                With sub-masters, the master with the fewest workers counts.
            elastic_lr: learning rate of the local steps in easgd.
            elastic_momentum: momentum of the local steps in easgd.
            others: options, and parameters of the optimizer, see above.

        Raises:
            ConfigurationError: an argument is invalid.
        """
        self.optimizer_name = optimizer
        self.loss = loss
        self.validate_every = validate_every
        require_known("`mode` of Algo", mode, _MODES)
        is_number = isinstance(validate_every, int | float) and not isinstance(validate_every, bool)
        if validate_every is not None and not (is_number and validate_every >= 0):
            raise ConfigurationError(
                f"`validate_every` of Algo must be a number of updates, at least 0. Received: {validate_every!r}. "
                "0 switches validation off."
            )
        self.mode = "gem" if optimizer == "gem" else _MODES[mode]
        self.sync_every = sync_every
        self.worker_optimizer = worker_optimizer
        self.elastic_force = elastic_force
        if optimizer is None and self.mode != "easgd":
            raise ConfigurationError(
                f"`optimizer` of Algo must be named in mode {mode!r}. Received: None. Use one of "
                f"{', '.join(OPTIMIZERS)}."
            )
        known = _OPTIONS_OF_GEM if optimizer == "gem" else _OPTIONS
        self._settings: dict[str, Any] = {
            "mode": self.mode,
            "sync_every": sync_every,
            "loss": loss if isinstance(loss, str) else None,
            "worker_optimizer": worker_optimizer or ("sgd" if optimizer is None else None),
            "worker_optimizer_params": _mapping(worker_optimizer_params),
            "elastic_lr": elastic_lr,
            "elastic_momentum": elastic_momentum,
            "learning_rate": None,
            **{option: others.pop(name) for name, option in known.items() if name in others},
        }
        if optimizer in (None, "gem"):
            if others:
                raise ConfigurationError(f"Algo has no argument {min(others)!r} without an optimizer. Leave it out.")
        else:
            # The ancestors' names include the framework, as in "adamtf".
            name = optimizer.removesuffix("tf").removesuffix("torch").lower()
            self._settings |= {"optimizer": name, "optimizer_params": others}
        check_training(self.options(n_workers=1, batch=1, epochs=10**6))

    @property
    def validates(self) -> bool:
        """True if there is validation."""
        return self.validate_every is None or self.validate_every > 0

    def samples_between_validations(self, n_train: int, batch: int) -> int:
        """Return the number of training samples between two validations; `n_train` for one epoch."""
        every = self.validate_every
        if not every or int(every) == n_train // batch:
            return n_train
        return max(1, int(every)) * batch * self.sync_every

    def options(self, *, n_workers: int, batch: int, epochs: int, **changes: Any) -> TrainingOptions:
        """Return the options of a training by `n_workers` workers; `changes` that are None are ignored."""
        settings = self._settings | {name: value for name, value in changes.items() if value is not None}
        beta = ELASTIC_FORCE if self.elastic_force is None else self.elastic_force * n_workers
        return TrainingOptions.of({"batch": batch, "epochs": epochs, "elastic_force": beta, **settings})

    def get_config(self) -> dict[str, str]:
        """Return all settings as text."""
        own = {"optimizer": self.optimizer_name, "validate_every": self.validate_every, "loss": self.loss}
        return {name: str(value) for name, value in (self._settings | own).items()}

    def __str__(self) -> str:
        config = self.get_config()
        return f"Algo(optimizer={config.pop('optimizer')}, {', '.join(f'{k}={v}' for k, v in config.items())})"


def _mapping(value: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return parameters given as a dict or as its text."""
    try:
        return dict(literal_eval(value) if isinstance(value, str) else value or {})
    except (ValueError, SyntaxError, TypeError):
        raise ConfigurationError(
            f"`worker_optimizer_params` of Algo must be a dict. Received: {value!r}. Give one such as "
            "{'momentum': 0.9}."
        ) from None
