"""Last part of a start, after the last trial: best model, reports, summary."""

import sys
from functools import partial
from pathlib import Path

from nnlo_opt.app.reporting.words import metrics_text
from nnlo_opt.app.run.afterwards import last_steps
from nnlo_opt.app.run.afterwards.best_model import save_model
from nnlo_opt.app.run.afterwards.mirrors import ask_mirrors, end_mirrors
from nnlo_opt.app.run.start.coordinate import RunningSearch
from nnlo_opt.app.run.start.driver import Driver, Ended
from nnlo_opt.core.base.errors import OutOfTimeError
from nnlo_opt.engine.objective.working_folder import remove_stale_links
from nnlo_opt.engine.runtime.timeline import TIMELINE_NAME


class Ending:
    """End of a start.

    Args:
        driver: driver of the start.
        run: a run whose coordinator has finished.
    """

    def __init__(self, driver: Driver, run: RunningSearch) -> None:
        self._driver, self._run = driver, run
        self._host, self._console, self._say = driver.host, driver.console, driver.say
        self._options, self._preemption = driver.options, driver.context.preemption

    def end(self) -> int:
        """Save the best model, write the reports, and print how the run has ended; return the exit code."""
        driver, run, directory, coordinator = self._driver, self._run, self._run.directory, self._run.coordinator
        driver.last_request(coordinator)
        self._console.hide_bottom()
        stuck = {coordinator.membership.block_of(team) for team in coordinator.membership.suspects}
        self._host.end_if_stuck(stuck, self._options.plan.budget.trial_timeout_s or 0.0, self._say)
        if not coordinator.is_complete:
            coordinator.complete()  # there may be no time for more
        model_path, test = None, dict[str, float]()
        if coordinator.all_stopped and not run.findings.is_objective and self._host.saves_model:
            model_path, test = self._save_best()
        if coordinator.is_complete:
            coordinator.complete(test)
        if not driver.is_one_training:
            last_steps.remove_stale_checkpoints(directory.path, directory.ledger)
            remove_stale_links(directory.path, directory.ledger)
        # Mirrors work while the reports are written.
        mirrors_until_s = ask_mirrors(run.mirrors, self._preemption.left_s)
        reports = () if run.reporter is None else self._host.write_reports(run.reporter, directory, self._say)
        end_mirrors(run.mirrors, directory, mirrors_until_s, self._say)
        self._console.end_quiet()
        ended = Ended(directory=directory, findings=run.findings, model_path=model_path, reports=reports)
        code = self._host.conclude(partial(self._conclude, ended, test))
        driver.remark(ended)
        return code

    def _save_best(self) -> tuple[Path | None, dict[str, float]]:
        """Have a trainer rank save the best model; return its path, if there is one, and its metrics on test data."""
        directory, coordinator, best = self._run.directory, self._run.coordinator, self._run.directory.ledger.result
        if best is None or not best.folds:
            return None, {}
        candidates = [team.first_trainer_rank for team in self._run.free_teams]
        direction, is_over = self._options.plan.direction, coordinator.is_complete
        saved = save_model(self._driver.ranks, candidates, directory.path, best, direction, measure=is_over)
        if saved.error:
            self._say(f"The best model could not be saved or measured: {saved.error}", sys.stderr)
            return None, {}
        return directory.shown / Path(saved.path).name, saved.metrics

    def _conclude(self, ended: Ended, test: dict[str, float]) -> int:
        code = self._driver.conclude(ended)
        if test:
            self._say(f"On the test data, `{self._options.data.test_data}`: {metrics_text(test)}")
        if self._driver.context.timeline.keeps:
            self._say(f"Timeline: `{ended.directory.shown / TIMELINE_NAME}`; open it in https://ui.perfetto.dev.")
        if self._preemption.is_over or not self._run.coordinator.all_stopped:
            raise OutOfTimeError("there is no time left to wait for busy ranks: the job ends at once.")
        return code
