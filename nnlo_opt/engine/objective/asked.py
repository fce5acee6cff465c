"""The rank behind ask and tell: the caller asks it for a trial, and tells it reports and the result."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import MisuseError, TrialError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.user_code import reason_of, shortened
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.attempts import ordered_directory, take_over
from nnlo_opt.core.trials.manifest import remove_all
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.attempt import Attempt
from nnlo_opt.engine.objective.checkpoint import last_save
from nnlo_opt.engine.objective.rank import ROOT, Report, RunningTrial, TrialFold


class AskedRank:
    """Rank whose trials are computed by the caller, one at a time.

    Args:
        orders: transport to the coordinator.
        run: the run directory.
        comparison: rules by which trials are compared.
        clock: measures the duration of a trial.
    """

    def __init__(self, orders: Transport, run: Path, comparison: Comparison, clock: Clock) -> None:
        self._orders, self._run, self._comparison, self._clock = orders, run, comparison, clock
        #: running attempt; None if there is none
        self._attempt: Attempt | None = None
        #: assignment -> folder of saves to remove once the coordinator has recorded its end
        self._unneeded: dict[int, SafePath] = {}

    def take_in(self) -> bool:
        """Handle messages of the coordinator; return True if there is a new trial to ask for."""
        before = self._attempt
        while (received := self._orders.poll()) is not None:
            self._handle(received.message)
        return self._attempt is not before

    def _handle(self, message: msg.Message) -> None:
        attempt = self._attempt
        if isinstance(message, msg.RunFold):
            saved, folder = take_over(self._run, message, last_save), ordered_directory(self._run, message)
            self._attempt = attempt = Attempt(message, saved, folder, self._comparison, self._clock)
            n_saved = attempt.checkpoint.n_epochs
            self._orders.send(ROOT, msg.FoldStarted(assignment=message.assignment, epoch=n_saved))
        elif isinstance(message, msg.FoldRecorded):
            if (unneeded := self._unneeded.pop(message.assignment, None)) is not None:
                remove_all(unneeded)
        elif attempt is not None and getattr(message, "assignment", None) == attempt.order.assignment:
            attempt.heard.add(type(message))
            if isinstance(message, msg.PreemptFold):
                self._orders.send(ROOT, msg.FoldStopped(assignment=message.assignment))

    # ------------------------------------------------------------ while an attempt runs

    def trial(self, space: Space, seed: int, report: Report) -> RunningTrial:
        """Return the running trial for the caller; it reports through `report`."""
        assert self._attempt is not None
        return RunningTrial(
            number=self._attempt.order.trial,
            parameters=space.given(self._attempt.order.point),
            checkpoint=self._attempt.checkpoint,
            fold=TrialFold(seed=seed),
            _run=self._run,
            _report=report,
        )

    @property
    def is_stopped(self) -> bool:
        """True once the coordinator waits for the end of the running trial."""
        return self._attempt is not None and msg.StopFold in self._attempt.heard

    def report(self, epoch: Any, value: Any, figures: Mapping[str, Any]) -> msg.EpochReported:
        """Report a value after an epoch; TrialError unless all values are numbers."""
        assert self._attempt is not None
        reported = self._attempt.report(epoch, value, figures)
        self._orders.send(ROOT, reported)
        return reported

    def end(self, value: Any, error: BaseException | str | None) -> None:
        """End the trial with its value, or with the reason for its failure.

        Raises:
            MisuseError: `value` is invalid for any trial; the trial continues.
        """
        assert self._attempt is not None
        order, result = self._attempt.order, self._end_of(self._attempt, value, error)
        if not isinstance(result, msg.FoldFinished):
            self._unneeded[order.assignment] = ordered_directory(self._run, order)
        self._orders.send(ROOT, result)
        self._attempt = None

    def _end_of(self, attempt: Attempt, value: Any, error: BaseException | str | None) -> msg.Message:
        number = attempt.order.assignment
        if error is not None:
            reason = reason_of(error) if isinstance(error, BaseException) else shortened(str(error))
            return msg.FoldFailed(assignment=number, reason=reason)
        try:
            finished = attempt.finished(value)
        except MisuseError:
            raise
        except TrialError as failure:
            return msg.FoldFailed(assignment=number, reason=reason_of(failure))
        return msg.FoldStopped(assignment=number) if self.is_stopped else finished
