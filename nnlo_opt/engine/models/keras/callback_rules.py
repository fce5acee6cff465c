"""Which Keras callbacks of a model module act on a training as in `fit`; all others are refused before it begins."""

from collections.abc import Collection, Sequence
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean, shown
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.engine.models.keras.callback_state import state_of

_SAVES = "The best weights are saved anyway, {checkpoint_interval} saves trainings, and blocks would write one file"
#: callbacks of Keras that cannot be honoured, with what does the same; names in braces are those of options
_INSTEAD = {
    **dict.fromkeys(("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint"), _SAVES),
    "CSVLogger": "The history of every training is in its run directory, and blocks would write one file",
    "TensorBoard": "`nnlo-opt export --to tensorboard` writes its records",
    "ProgbarLogger": "Every epoch has its line in the output",
    "RemoteMonitor": "`nnlo-opt show` prints the epochs of a run",
    "SwapEMAWeights": "The averages of `use_ema` are evaluated after each epoch and saved without it",
}
#: callbacks that set the learning rate
_OF_RATE = ("LearningRateScheduler", "ReduceLROnPlateau")
#: methods that `fit` calls within an epoch
_WITHIN = tuple(
    f"on_{part}{end}" for part in ("batch", "train_batch", "test_batch", "test") for end in ("_begin", "_end")
)
#: callback whose methods for batches need no call: a loss that is not finite ends any training
_NEEDLESS = "TerminateOnNaN"


def check_callbacks(callbacks: Sequence[Any], source: str, known: Collection[str], *, is_scheduled: bool) -> None:
    """Raise ConfigurationError for a callback that would not act as in `fit`.

    Args:
        callbacks: return value of `get_callbacks`.
        source: file of `get_callbacks`.
        known: names of the metrics that it may monitor.
        is_scheduled: True if an option sets a schedule of the learning rate.
    """
    import keras

    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            is_class = " Write `()` behind the class." if isinstance(callback, type) else ""
            raise ConfigurationError(
                f"`get_callbacks` of {source} must return Keras callbacks. Received: {shown(callback)}.{is_class}"
            )
        kinds = {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.partition(".")[0] == "keras"}
        name = type(callback).__name__
        if unused := next((kind for kind in _INSTEAD if kind in kinds), None):
            instead = _INSTEAD[unused].format(checkpoint_interval=f"`{spelled('checkpoint_interval')}`")
            raise ConfigurationError(
                f"A callback must act at the end of an epoch, on one rank. Received: {name}, from `get_callbacks` of "
                f"{source}. {instead}. Leave it out."
            )
        within = [] if _NEEDLESS in kinds else [hook for hook in _WITHIN if _has_own(callback, hook)]
        if within:
            raise ConfigurationError(
                f"Callbacks are called at the beginning and end of a training and of an epoch, as several ranks train "
                f"its batches. Received: {name} with `{within[0]}`, from `get_callbacks` of {source}. Write it as "
                "`on_epoch_end`."
            )
        monitor = getattr(callback, "monitor", None)
        if "MonitorCallback" in kinds and monitor not in known:
            raise ConfigurationError(
                f"A callback must monitor a metric of the training: {', '.join(known)}. Received: {monitor!r} of "
                f"{name}, from `get_callbacks` of {source}.{did_you_mean(str(monitor), known)}"
            )
        if is_scheduled and (setter := next((kind for kind in _OF_RATE if kind in kinds), None)):
            refuse_schedule(setter)
        state_of(callback)


def refuse_schedule(callback: str) -> None:
    """Raise ConfigurationError: a callback and an option set the learning rate."""
    raise ConfigurationError(
        f"Either `{spelled('lr_schedule')}` with `{spelled('warmup_epochs')}`, a schedule inside of the optimizer or "
        f"a callback sets the learning rate. Received: two of them, with {callback}. Leave one of them out."
    )


def _has_own(callback: Any, hook: str) -> bool:
    import keras

    is_own = getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
    return is_own or hook in vars(callback)
