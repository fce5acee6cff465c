"""The commands `nnlo-opt repair` and `nnlo-opt clean`, which maintain the files of a run.

`clean` does not touch active runs, or anything needed for a resume: the journal, checkpoints of trials that have not
ended, notes for the next start.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.runs import runs_in
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.table import wrapped
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.kinds import FLAG
from nnlo_opt.app.run.options.table import BY_NAME, Option
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_WRONG_REQUEST, ConfigurationError, NnloError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.jobs.repaired import repair_shared
from nnlo_opt.core.trials.attempts import left_in
from nnlo_opt.core.trials.kept_weights import FILES_NAME, WeightKeeper, best_trials
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import repair as repair_journal
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import RunLock, may_be_at_work
from nnlo_opt.core.trials.sharing import FOLDER as JOBS
from nnlo_opt.engine.objective.working_folder import stale_links
from nnlo_opt.engine.runtime.timeline import PARTS_NAME, TIMELINE_NAME

# fmt: off
#: options of `nnlo-opt clean`
CLEAN_OPTIONS = (
    Option("yes", "", FLAG, default=False, help="remove the files; without it they are only counted"),
    Option("dry_run", "", FLAG, default=False, help="only count the files; the default without --yes"),
    replace(BY_NAME["keep_weights"], group="",
        help="best:N: also remove the trained weights of all but the N best trials and the Pareto set; training them "
             "again takes as long as the search"),
)
# fmt: on
#: reports that `nnlo-opt report` can recreate
_REPORTS = ("report.html", "figures")
#: name of a temporary file of `files.atomic_path` left by a kill
_TEMPORARY = re.compile(r"\..{1,24}\.[0-9a-f]{12}(\..+)?", re.DOTALL)


def repair(parser: Parser, argv: Sequence[str]) -> None:
    """Salvage a damaged journal, so that the run can be resumed; the damaged one is kept next to it as
    journal.jsonl.damaged-1, -2, ….
    """
    run = parser.values_of_run(argv, "").run
    repaired = repair_shared(run) if (run / JOBS).exists() else repair_journal(run)
    if repaired is None:
        print(f"`{run / JOURNAL_NAME}` is sound: nothing to repair.")
        return
    found, damaged = repaired
    kept = counted(len(found.events), "event")
    print(f"Repaired `{run / JOURNAL_NAME}`: {kept} kept. The damaged journal is `{damaged}`.")
    gaps = [f"{first}" if first == last else f"{first}-{last}" for first, last in found.gaps]
    if gaps:
        print(f"Lost lines: {', '.join(gaps)}.")
    if found.n_damaged:
        print(f"Damaged or repeated: {counted(found.n_damaged, 'line')} of the file.")
    if found.n_timed:
        print(f"Times of a wrong clock, set to the nearest possible one: {counted(found.n_timed, 'event')}.")
    if found.n_missing:
        print(f"Missing at the end of the file: {counted(found.n_missing, 'byte')} that had been on the disk.")
    for event in found.dropped:
        print(f"Dropped, because an event it depends on is lost: {event}.")
    if found.lost:
        print(f"Lost trials: {', '.join(map(str, found.lost))}.")
    if found.renumbers:
        changed = [f"{old} is now {new}" for old, new in found.moved.items() if old != new]
        print(f"Trials were renumbered without gaps: {', '.join(changed)}.")
    if found.still_open:
        print(f"Unfinished trials, which `--opt-restore` resumes: {', '.join(map(str, found.still_open))}.")


# ---------------------------------------------------------------- files that can be recreated


def clean(parser: Parser, argv: Sequence[str]) -> int:
    """Remove files that can be recreated: checkpoints of ended trials that are not the best, parts of timelines, old
    pages and figures, leftovers of interrupted writes, links of killed scripts. The journal is kept, and active runs
    are not touched. A folder may contain several runs.
    """
    arguments = parser.values_of_run(argv, "", has_begun=False)
    if arguments.yes and arguments.dry_run:
        raise ConfigurationError("`--yes` removes files and `--dry-run` does not. Received: both; give one.")
    runs, width = runs_in(arguments.run), line_width()
    if not runs:
        raise ConfigurationError(
            f"A folder to clean must hold a run. Received: `{arguments.run}`, which holds none; name another."
        )
    n_bytes, code = 0, EXIT_OK
    for run in runs:
        try:
            freed, text = _clean(run, arguments.keep_weights, removes=arguments.yes)
        except (OSError, NnloError) as error:
            code, freed, text = EXIT_WRONG_REQUEST, 0, f"left alone. {error}"
        n_bytes += freed
        print(wrapped(f"`{run}`: {text}", width))
    rest = "are removed" if arguments.yes else "would be removed. Add `--yes` to remove the files"
    print(f"{_size(n_bytes)} {rest}.")
    return code


def _clean(run: Path, n_best: int | None, *, removes: bool) -> tuple[int, str]:
    """Remove the files of one run, or only count them; return their bytes and a description."""
    if may_be_at_work(run):
        return 0, "at work, left alone."
    with closing(RunLock(run, 0.0)) if removes else nullcontext():
        found = _removable(SafePath(run), read_ledger(run), n_best)
        sizes = {what: sum(map(_bytes, paths)) for what, paths in found.items()}
        texts = [f"{counted(len(paths), what)} ({_size(sizes[what])})" for what, paths in found.items() if paths]
        for path in (path for paths in found.values() for path in paths) if removes else ():
            path.remove()
    return sum(sizes.values()), f"{', '.join(texts) or 'nothing to remove'}."


def _removable(run: SafePath, ledger: Ledger, n_best: int | None) -> dict[str, list[SafePath]]:
    """Return description -> files and folders that can be recreated."""
    # A failed training resumes from the last checkpoint.
    kept = [*best_trials(ledger), ledger.result]
    # The saves of complete trials of an objective are their weights.
    kept += [trial for trial in ledger.trials if ledger.identity.data is None and trial.folds]
    over = [trial.number for trial in ledger.trials if trial.state.ended and trial not in kept]
    checkpoints = [path for number in over for path in left_in(run / f"trials/{number:04d}", "checkpoint-*")]
    journal_at_s = (run / JOURNAL_NAME).stat().st_mtime
    # Each term of jobs that share a run has a copy of the journal before it.
    terms = [path for term in range(1, ledger.term) for path in run.glob(f"{JOBS}/journal-{term}")]
    parts = (run / PARTS_NAME).glob("*") if (run / TIMELINE_NAME).exists() else []
    return {
        "surplus checkpoint": checkpoints,
        "weight file": [] if n_best is None else [*WeightKeeper(run.root).surplus(ledger, n_best)],
        "leftover link": stale_links(run.root, ledger),
        "timeline part": parts,
        "earlier journal": terms,
        "old report": [path for name in _REPORTS for path in run.glob(name) if path.stat().st_mtime < journal_at_s],
        "temporary file": [*_temporary(run)],
    }


def _temporary(run: SafePath) -> Iterator[SafePath]:
    """Yield half-written files and checkpoints of killed processes; call only if no process is active."""
    theirs = (".checkpoint-", "rank-")  # files of a script or an objective may have any name
    for path in run.walk(enters=lambda folder: folder.name != FILES_NAME and not folder.name.startswith(theirs)):
        if path.name.startswith(".checkpoint-") if path.is_dir() else _TEMPORARY.fullmatch(path.name):
            yield path


def _bytes(path: SafePath) -> int:
    """Return the size in bytes of a file, or of the files in a folder."""
    return sum(one.stat().st_size for one in path.walk() if not one.is_dir())


def _size(n_bytes: int) -> str:
    """Format a number of bytes in its largest unit."""
    size, units = float(n_bytes), ["B", "KB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
