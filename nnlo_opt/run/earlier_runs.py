"""`--warm-start`: what earlier runs have measured, read from their journals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import Observation
from nnlo_opt.search.warm_start import adopted_observations
from nnlo_opt.space.space import Space
from nnlo_opt.trials.journal import read_events
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import JOURNAL_NAME


def observations_of_runs(
    paths: Sequence[Path], identity: dict[str, Any], space: Space
) -> tuple[list[Observation], list[str]]:
    """What the runs in `paths` have measured that counts in `space`, and lines on what was and was not taken over.

    ConfigurationError where a path holds no search, or one of another figure of merit or direction than `identity`.
    """
    observations: list[Observation] = []
    lines = []
    for path in paths:
        ledger = _ledger_of(path)
        for key, what in (("figure_of_merit", "figure of merit"), ("direction", "direction")):
            if ledger.identity.get(key) != identity[key]:
                raise ConfigurationError(
                    f"`--warm-start` must name runs with the same {what}, as their figures are compared. Received: "
                    f"`{path}` with {ledger.identity.get(key)} where this run has {identity[key]}; leave it out."
                )
        found, remarks = adopted_observations(ledger.trials, Space.from_json(ledger.identity["search_space"]), space)
        observations += found
        lines += [f"Warm start from `{path}`: {remark}." for remark in remarks]
        n_complete = ledger.n_by_state()["complete"]
        lines.append(f"Warm start from `{path}`: {len(found)} of {n_complete} complete trials are told to the search.")
    return observations, lines


def _ledger_of(path: Path) -> Ledger:
    journal = path / JOURNAL_NAME
    try:
        data = journal.read_bytes()
    except OSError:
        raise ConfigurationError(
            f"`--warm-start` must name run directories, which hold a `{JOURNAL_NAME}`. Received: `{path}`; correct it."
        ) from None
    ledger = Ledger()
    for event in read_events(data, str(journal))[0]:
        ledger.apply(event)
    if ledger.identity.get("search_space") is None:
        raise ConfigurationError(
            f"`--warm-start` must name runs of OptimizationDriver. Received: `{path}`, which is none; leave it out."
        )
    return ledger
