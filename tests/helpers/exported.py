"""Events of a run with all that an export has to keep."""

import numpy as np

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.space import Categorical, Integer, Ordinal, Real, Space, When

SPACE = Space(
    [
        Real(1e-4, 1e-1, "log-uniform", name="lr"),
        Real(0.0, 1.0, name="drop", step=0.25),
        Integer(1, 64, "log-uniform", name="units"),
        Integer(2, 10, name="layers", step=2),
        Categorical(["adam", "sgd"], name="optimizer"),
        Real(0.0, 1.0, name="momentum", condition=When("optimizer", "sgd")),
        Categorical([None, 0.5, 1], name="clip"),
        Ordinal([16, 32, 64], name="batch"),
        Categorical([[1, 2], [3]], name="shape"),
        Categorical([True, False], name="bias"),
        Categorical(["l1", "l2", None], name="penalty", condition=When("optimizer", "sgd")),
    ]
)
UNIX_S = 1_700_000_000.0
#: ends of the trials in their order; "" for a trial under way
ENDS = ("complete", "complete", "failed", "pruned", "", "complete")
REASON = "the loss is not finite"


def take_in_parts(exporter, events, n_at_once):
    """Give events to an exporter, so many at once."""
    ledger = Ledger()
    for first in range(0, len(events), n_at_once):
        new = events[first : first + n_at_once]
        for event in new:
            ledger.apply(event)
        exporter.take(new, ledger)


def started(n_fold=1, objectives=("val_loss:max",)):
    identity = {
        "search_space": SPACE.to_json(),
        "model": {"name": "m"},
        "direction": objectives[0].rpartition(":")[2],
        "figure_of_merit": "val_loss",
        "objectives": [*objectives],
        "n_fold": n_fold,
    }
    settings = {"command_line": ["OptimizationDriver", "--model", "m.py"]}
    return ev.RunStarted(time_s=0.0, unix_s=UNIX_S, n_ranks=3, n_blocks=1, identity=identity, settings=settings)


def story(n_fold=1, objectives=("val_loss:max",)):
    """Events of one trial for each of `ENDS`, and of one that waits."""
    events, clock, assignment = [started(n_fold, objectives)], 0.0, 0
    names = [objective.rpartition(":")[0] for objective in objectives] if len(objectives) > 1 else []

    def happen(kind, **values):
        nonlocal clock
        clock += 0.5
        events.append(kind(time_s=clock, **values))

    for trial, end in enumerate(ENDS):
        happen(ev.TrialSuggested, trial=trial, point=SPACE.sample(np.random.default_rng(trial)))
        figures = []
        for fold in range(n_fold):
            place = {"attempt": 1, "block": 1, "team": 0, "n_ranks": 2}
            happen(ev.FoldAssigned, assignment=assignment, trial=trial, fold=fold, **place)
            happen(ev.FoldBegan, assignment=assignment)
            for epoch in (1, 2, 2, 3)[: 2 if end in ("", "pruned") else None]:  # a crash had the second repeated
                figure = 0.1 * trial + fold + epoch + 0.001 * len(events)
                metrics = {"loss": figure / 2, "val_loss": figure}
                happen(ev.EpochEnded, assignment=assignment, epoch=epoch, metrics=metrics, figure_of_merit=figure)
            values = {name: figure + number for number, name in enumerate(names)}
            if end == "complete":
                measured = {"metrics": metrics, "n_epochs": 3, "train_s": 1.0, "objectives": values}
                happen(ev.AssignmentFinished, assignment=assignment, figure_of_merit=figure, **measured)
            elif end == "failed":
                happen(ev.AssignmentFailed, assignment=assignment, reason=REASON)
            elif end == "pruned":
                happen(ev.AssignmentStopped, assignment=assignment)
            figures.append(figure)
            assignment += 1
            if end in ("", "failed"):
                break
        mean, std = float(np.mean(figures)), float(np.std(figures))
        if end == "complete":
            several = {name: mean + number for number, name in enumerate(names)}
            stds = dict.fromkeys(names, std)
            figure = {"figure_of_merit": mean, "figure_of_merit_std": std}
            happen(ev.TrialCompleted, trial=trial, **figure, objectives=several, objectives_std=stds)
        elif end == "failed":
            happen(ev.TrialFailed, trial=trial, reason=REASON)
        elif end == "pruned":
            happen(ev.TrialPruned, trial=trial, figure_of_merit=mean, reason="worse than the median")
    happen(ev.TrialSuggested, trial=len(ENDS), point=SPACE.middle())
    return events
