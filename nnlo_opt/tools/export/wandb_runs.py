"""Exports trials as offline Weights & Biases runs for `wandb sync`.

Nothing is sent: offline runs are files, and error reports and machine statistics are disabled.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial, TrialState
from nnlo_opt.tools.export.exporter import Epoch, epochs_of, results_of, trial_name, trials_of


class OfflineRuns:
    """Exporter to offline Weights & Biases runs, with the run as project and group.

    Args:
        target: folder of the runs.
        run_name: name of the project.
    """

    def __init__(self, target: SafePath, run_name: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._target = target
        self._project = re.sub(r"[/\\#?%:]", "_", run_name)

    def take(self, events: Sequence[ev.Event], ledger: Ledger) -> None:
        import wandb

        epochs = epochs_of(events, ledger)
        for trial in trials_of(events, ledger):
            self._log(trial, epochs[trial.number], ledger)
        wandb.teardown()  # its process may still be writing the last run after `finish`

    def _log(self, trial: Trial, epochs: Sequence[Epoch], ledger: Ledger) -> None:
        import wandb

        name = trial_name(trial.number)
        # fmt: off
        settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True, x_save_requirements=False)
        # fmt: on
        where: dict[str, Any] = {"mode": "offline", "dir": str(self._target), "settings": settings}
        # The ID is the same in a later export, so that it replaces the run in W&B.
        where |= {"project": self._project, "group": self._project, "id": f"{self._project}-{name}", "name": name}
        run = wandb.init(**where, config=trial.point, tags=[trial.state.value])
        run.define_metric("*", step_metric="epoch")
        for epoch in epochs:
            run.log({"epoch": epoch.number, "_timestamp": epoch.unix_s, **epoch.values})
        run.summary.update({"state": trial.state.value, **results_of(trial, ledger)})
        run.finish(exit_code=int(trial.state is TrialState.FAILED))
