"""Repair of the journal of a run that jobs share: what can be kept begins a new term, whose owner has left.

So a job that was only stopped, and wakes up, finds itself overtaken as by any other term. Nothing that jobs were
working on counts any more: they are expelled, may join anew, and their folds are assigned again.
"""

import shlex
from functools import partial
from pathlib import Path

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.jobs.files import SharedFiles, begun_name, journal_name, log_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.lines import Left, encoded
from nnlo_opt.core.jobs.succession import BEGUN, VOID, Copy, begin
from nnlo_opt.core.jobs.terms import Terms
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Content, encode_line
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import Salvage, repair
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.sharing import FOLDER, refuse_shared

#: number in place of a job's, with a log that says that it has left
_NO_JOB = 0
_REASON = "the journal was repaired"


def repair_shared(run: Path) -> tuple[Salvage, SafePath] | None:
    """Repair the journal of the newest term, like `repair`; ConfigurationError if a job may be alive."""
    refuse_shared(run)
    files = FolderFiles(run)
    terms = Terms(files)
    terms.look()
    begun = [term for term in range(1, terms.greatest + 1) if files.read(begun_name(term)) == BEGUN]
    if not begun:
        return repair(run)
    newest = SafePath(run) / FOLDER / journal_name(begun[-1])
    return repair(run, newest, partial(_begin_term, run, files, terms, begun))


def _begin_term(run: Path, files: SharedFiles, terms: Terms, begun: list[int], found: Salvage, identity: str) -> None:
    """Begin a term with the events of a repaired journal, after those of the terms `begun`."""
    kept = [event.term for event in found.events if isinstance(event, ev.TermBegan)]
    if found.renumbers or found.renumbers_assignments or kept != begun:
        copy, source = shlex.quote(f"{run}-copy"), shlex.quote(str(run / FOLDER / journal_name(begun[-1])))
        raise JournalError(
            f"The journal of a run that jobs share must have the beginnings of its trials, attempts and terms, which "
            f"name its files. Received: `{run}`, which has lost some. Keep its results for a new search: `mkdir {copy} "
            f"&& cp {source} {copy}/{JOURNAL_NAME} && nnlo-opt repair {copy}`, then `--warm-start {copy}`."
        )
    ledger = Ledger(found.events)
    last_s = max(event.time_s for event in found.events)
    running = [a.number for a in ledger.assignments if a.end is None]
    events = [
        *found.events,
        *(ev.AssignmentLost(time_s=last_s, assignment=number, reason=_REASON) for number in running),
        *(ev.JobLeft(time_s=last_s, job=job.number, reason=_REASON, expelled=True) for job in ledger.jobs_here),
    ]
    files.create(log_name(_NO_JOB), encoded(log_name(_NO_JOB), 0, Left()))
    while not terms.take(_NO_JOB):
        pass
    for term in range(begun[-1] + 1, terms.greatest):
        files.create(begun_name(term), VOID)
    data = b"".join(encode_line(seq, event, identity) for seq, event in enumerate(events))
    copy_of = Copy(begun[-1], Content(events, identity, len(data), 0), data)
    began = ev.TermBegan(time_s=last_s, term=terms.greatest, job=_NO_JOB)
    if begin(files, copy_of, began, ()) is None:
        raise JournalError(f"A run is repaired while nobody works on it. Received: `{run}`, which a job has joined.")
    files.publish(journal_name(terms.greatest))
