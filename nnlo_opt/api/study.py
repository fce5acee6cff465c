"""Search from Python whose trials the caller runs: `Study.ask` gives a point, `Study.tell` takes its value."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Unpack

from nnlo_opt.api.arguments import SearchArguments
from nnlo_opt.api.optimize import SearchResult, SpaceLike, search_options, space_of
from nnlo_opt.block.answers import reason_of
from nnlo_opt.run.asking import AskedSearch
from nnlo_opt.run.option_kinds import whole
from nnlo_opt.space.space import Point


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """Trial that the caller runs."""

    number: int
    #: value of every parameter by name
    parameters: Point
    _search: AskedSearch = field(repr=False, compare=False)

    def report(self, epoch: int, value: float) -> bool:
        """Report a value after an epoch, for `pruner`; return False if the trial is to stop."""
        return self._search.report(self.number, epoch, value)


class Study:
    """Search whose trials the caller runs, in this process; each rank of MPI has a study of its own.

        with nnlo_opt.Study({"x": Real(-5, 5)}, num_iterations=20) as study:
            for trial in study:
                study.tell(trial, (trial.parameters["x"] - 2) ** 2)
        print(study.result)

    Args:
        space: as of `nnlo_opt.optimize`.
        n_parallel: most trials that may be under way at a time, whose values the study does not have yet.
        options: options of `nnlo_opt.optimize`, without the options of models. A study with `checkpoint` is resumed by
            `opt_restore=True`; trials that were under way are then asked for again.

    Raises:
        ConfigurationError: the arguments are wrong, or the run is another search.
    """

    def __init__(self, space: SpaceLike, *, n_parallel: int = 1, **options: Unpack[SearchArguments]) -> None:
        script = str(getattr(sys.modules["__main__"], "__file__", "a script"))
        checked = search_options(options, script)
        self._search = AskedSearch(
            checked,
            space_of(space, fixed=checked.fix),
            n_parallel=whole(unit="trials")(n_parallel),
            keeps_files=options.get("checkpoint") is not None,
            source=script,
        )

    def ask(self) -> AskedTrial | None:
        """Return the next trial; None if the search is over, or needs a value first."""
        asked = self._search.ask()
        return None if asked is None else AskedTrial(*asked, self._search)

    def tell(
        self,
        trial: AskedTrial,
        value: float | Mapping[str, float] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """End a trial.

        Args:
            trial: as `ask` returned it.
            value: figure of merit; with several objectives the values by name. A value that is not finite fails the
                trial.
            error: reason, or exception, by which the trial has failed.
        """
        if error is None:
            self._search.tell(trial.number, value)
        else:
            self._search.fail(trial.number, error if isinstance(error, str) else reason_of(error))

    @property
    def result(self) -> SearchResult:
        """Result so far."""
        return SearchResult(self._search.ledger, self._search.options.plan.direction, self._search.directory)

    def close(self) -> None:
        """End the study, if it has not ended: trials under way are left to a study that resumes it."""
        self._search.close()

    def __iter__(self) -> Iterator[AskedTrial]:
        """Ask for one trial after another until there is none."""
        while (trial := self.ask()) is not None:
            yield trial

    def __enter__(self) -> "Study":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
