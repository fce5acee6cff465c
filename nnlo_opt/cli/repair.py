"""`nnlo-opt repair`: keeps the sound part of a damaged journal."""

from collections.abc import Sequence

from nnlo_opt.cli.arguments import Parser, checked_run
from nnlo_opt.reporting.lines import counted
from nnlo_opt.trials.repair import repair
from nnlo_opt.trials.run_directory import JOURNAL_NAME


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Keep the sound part of a damaged journal, so that the run can be resumed; the damaged journal is kept next to it
    as journal.jsonl.damaged-1, -2, ….
    """
    run = checked_run(parser.values_of_run(argv, "").run)
    repaired = repair(run)
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
