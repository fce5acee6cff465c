"""Events of short runs."""

from contextlib import closing

from nnlo_opt.trials import events as ev
from nnlo_opt.trials.journal import Journal, encode_line

START = ev.RunStarted(time_s=0.0, unix_s=100.0, n_ranks=3, n_blocks=1, identity={"seed": 0, "n_fold": 1})


def trial(number, figure=0.5):
    """All that happens in one trial of one fold."""
    t = 1.0 + number
    return [
        ev.TrialSuggested(time_s=t, trial=number, point={"x": number}),
        ev.FoldAssigned(time_s=t, assignment=number, trial=number, fold=0, attempt=1, block=1, team=0, n_ranks=2),
        ev.FoldBegan(time_s=t, assignment=number),
        ev.AssignmentFinished(time_s=t, assignment=number, figure_of_merit=figure, metrics={}, n_epochs=1, train_s=0.5),
        ev.TrialCompleted(time_s=t, trial=number, figure_of_merit=figure, figure_of_merit_std=0.0),
    ]


def write_journal(run, events):
    """Write the journal of these events to the directory `run`, which is returned."""
    with closing(Journal(run / "journal.jsonl")) as journal:
        journal.append(events)
    return run


def lines_of(events):
    """The lines of the journal of these events."""
    return [encode_line(seq, event) for seq, event in enumerate(events)]
