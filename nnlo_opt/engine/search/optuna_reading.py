"""Reads Optuna studies for `--warm-start`."""

from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.search.warm_start import metrics_of, standard_error
from nnlo_opt.core.trials.events import Observation

#: Optuna's attribute for infeasible trials: a positive number for a violated bound
CONSTRAINTS = "constraints"


def read_study(place: str, option: str) -> tuple[Study, list[Observation]]:
    """Return a study and the observations of its complete trials.

    Args:
        place: journal file, SQLite file, or URL of a storage, followed by `:STUDY` if it contains several studies.
        option: option with this value, for errors.

    Raises:
        ConfigurationError: the storage or study cannot be read, or the study has several objectives.
    """
    try:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = _study(place, option)
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return study, [_observation(trial) for trial in complete if trial.values]
    except ConfigurationError:
        raise
    except Exception as error:  # from Optuna, or any database behind it
        cause = error.__cause__ or error
        first = str(cause).strip().partition("\n")[0]
        raise ConfigurationError(
            f"`{option}` must name an Optuna study that can be read. Received: `{place}` "
            f"({type(cause).__name__}: {first}). Correct it."
        ) from None


def _study(place: str, option: str) -> Study:
    address, name = place, None
    if not Path(place).is_file() and "/" not in place.rpartition(":")[2]:
        address, _, name = place.rpartition(":")
    storage = _storage(address)
    names = [study.study_name for study in storage.get_all_studies()]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        listed = ", ".join(f"`{known}`" for known in names)
        which = f"it has {listed}; write `{address}:STUDY`" if names else "it has none"
        raise ConfigurationError(f"`{option}` must name one study of a storage. Received: `{place}`; {which}.")
    study = optuna.load_study(study_name=name, storage=storage)
    if len(study.directions) != 1:
        raise ConfigurationError(
            f"`{option}` must name a study of one objective. Received: `{place}` with {len(study.directions)}. Leave "
            "it out."
        )
    return study


def _storage(address: str) -> BaseStorage:
    path = Path(address.removeprefix("sqlite:///"))
    if "://" in address and not (address.startswith("sqlite:///") and not path.is_file()):
        return RDBStorage(address, skip_compatibility_check=True, skip_table_creation=True)
    with path.open("rb") as file:  # SQLite would create a file that does not exist
        begin = file.read(16)
    if begin == b"SQLite format 3\0":
        return _storage(f"sqlite:///{path}")
    return JournalStorage(JournalFileBackend(address))


def _observation(trial: FrozenTrial) -> Observation:
    error = standard_error(trial.user_attrs.get("figure_of_merit_std"), trial.user_attrs.get("n_folds"))
    is_feasible = all(excess <= 0 for excess in trial.system_attrs.get(CONSTRAINTS) or ())
    outcomes = metrics_of(trial.user_attrs)
    return Observation(point=trial.params, value=trial.values[0], std=error, feasible=is_feasible, outcomes=outcomes)
