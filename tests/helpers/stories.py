"""Events of short runs."""

from contextlib import closing

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal, encode_line

START = ev.RunStarted(time_s=0.0, unix_s=100.0, n_ranks=3, n_blocks=1, identity={"seed": 0, "n_fold": 1})


def suggested(trial, point=None, time_s=1.0):
    return ev.TrialSuggested(time_s=time_s, trial=trial, point={"x": trial} if point is None else point)


def assigned(assignment, trial=0, time_s=1.0, **place):
    place = {"fold": 0, "attempt": 1, "block": 1, "team": 0, "n_ranks": 2} | place
    return ev.FoldAssigned(time_s=time_s, assignment=assignment, trial=trial, **place)


def finished(assignment, figure=0.5, time_s=2.0, **more):
    result = {"figure_of_merit": figure, "metrics": {}, "n_epochs": 1, "train_s": 1.0} | more
    return ev.AssignmentFinished(time_s=time_s, assignment=assignment, **result)


def completed(trial, figure=0.5, time_s=2.0, std=0.0, **objectives):
    return ev.TrialCompleted(time_s=time_s, trial=trial, figure_of_merit=figure, figure_of_merit_std=std, **objectives)


def trial(number, figure=0.5):
    """All that happens in one trial of one fold."""
    t = 1.0 + number
    ends = finished(number, figure, t, train_s=0.5), completed(number, figure, t)
    return [*begun(number, t), *ends]


#: a search of 4 trials with 5 epochs each on 2 blocks
SEARCH = START.replaced(
    n_blocks=2,
    identity={"data": {}, "training": {"epochs": 5}, "figure_of_merit": "val_loss", "model": {"name": "net"}},
    settings={"plan": {"num_iterations": 4}, "hyper_opt": "random"},
)
TRAINING = SEARCH.replaced(n_blocks=1, identity={**SEARCH.identity, "search_space": None})


def begun(number, time_s=10.0, block=1, fold=0, epoch=0):
    """The first events of a trial under way, whose assignment has its number."""
    where = assigned(number, number, time_s, block=block, fold=fold)
    return [suggested(number, time_s=time_s), where, ev.FoldBegan(time_s=time_s, assignment=number, epoch=epoch)]


def reported(number, epoch, figure, time_s):
    return ev.EpochEnded(time_s=time_s, assignment=number, epoch=epoch, metrics={}, figure_of_merit=figure)


def failed(number, reason="no memory", time_s=20.0):
    return [
        *begun(number),
        ev.AssignmentFailed(time_s=time_s, assignment=number, reason=reason),
        ev.TrialFailed(time_s=time_s, trial=number, reason=reason),
    ]


#: a search with one trial that has ended and one that has reported
UNDER_WAY = [SEARCH, *trial(0), *begun(1, block=2), reported(1, 2, 0.75, 15.0)]


def write_journal(run, events):
    """Write the journal of these events to the directory `run`, which is returned."""
    with closing(Journal(run / "journal.jsonl")) as journal:
        journal.append(events)
    return run


def lines_of(events):
    """The lines of the journal of these events."""
    return [encode_line(seq, event) for seq, event in enumerate(events)]
