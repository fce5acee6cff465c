"""Events of a short search with all that can happen to a trial: two folds, conditions, None as a value."""

from nnlo_opt.core.trials import events as ev
from nnlo_opt.space import Categorical, Integer, Ordinal, Real, Space, When
from tests.helpers.stories import assigned, completed, finished

SPACE = Space(
    [
        Real(1e-3, 1.0, "log-uniform", name="lr"),
        Integer(1, 64, name="n", condition=When("act", "relu")),
        Categorical(["relu", None], name="act"),
        Ordinal(["small", "large"], name="size"),
        Categorical([True, False], name="bias"),
        Ordinal([16, 32], name="batch"),
    ]
)
IDENTITY = {
    "search_space": SPACE.to_json(),
    "model": {"name": "net", "source": "/nowhere/net.py", "sha256": "0"},
    "direction": "min",
    "figure_of_merit": "val_loss",
    "objectives": ["val_loss:min"],
    "n_fold": 2,
}
REST = {"size": "small", "bias": True, "batch": 16}
#: point and figure of each trial; a text is the reason of a failure, and None stands for a trial that is pruned
TRIALS = [
    ({"lr": 0.01, "n": 8, "act": "relu", **REST}, 0.25),
    ({"lr": 0.1, "act": None, "size": "large", "bias": False, "batch": 32}, 0.5),
    ({"lr": 0.03, "act": None, **REST}, 0.75),
    ({"lr": 1.0, "act": None, **REST}, "no <b>memory</b> left"),
    ({"lr": 0.3, "n": 64, "act": "relu", **REST}, None),
    ({"lr": 0.001, "n": 1, "act": "relu", **REST}, 400.0),
]


def started(n_blocks=2, **identity):
    return ev.RunStarted(time_s=0.0, unix_s=100.0, n_ranks=5, n_blocks=n_blocks, identity=IDENTITY | identity)


def of_trial(number, point, figure):
    """Events of a trial that takes 10 s on its block, with folds 0.125 below and above its figure."""
    begin, block = 10.0 * (number // 2), number % 2 + 1
    yield ev.TrialSuggested(time_s=begin, trial=number, point=point)
    for fold in (0, 1):
        assignment = 2 * number + fold
        yield assigned(assignment, number, begin, fold=fold, block=block, team=2 * block + fold, n_ranks=1)
        yield ev.FoldBegan(time_s=begin + 1.0, assignment=assignment)
    for fold in (0, 1):
        assignment, end = 2 * number + fold, begin + 9.0
        if isinstance(figure, str):
            yield ev.AssignmentFailed(time_s=end, assignment=assignment, reason=figure)
            continue
        last = (figure or 2.0) + (0.25 * fold - 0.125)
        for epoch, value in enumerate([1.0, last] if figure else [last], 1):
            measured = {"metrics": {"val_loss": value}, "figure_of_merit": value}
            yield ev.EpochEnded(time_s=begin + 3.0 * epoch, assignment=assignment, epoch=epoch, **measured)
        if figure is None:
            yield ev.AssignmentStopped(time_s=end, assignment=assignment)
            continue
        yield finished(assignment, last, end, metrics={"val_loss": last}, n_epochs=2, train_s=8.0)
    ended = {"time_s": begin + 9.0, "trial": number}
    if isinstance(figure, str):
        yield ev.TrialFailed(**ended, reason=figure)
    elif figure is None:
        yield ev.TrialPruned(**ended, figure_of_merit=2.0, reason="rank 3 of 3")
    else:
        yield completed(number, figure, begin + 9.0, 0.125)


def events_of(trials=TRIALS, **identity):
    """Events of a whole search."""
    events = [started(**identity)]
    for number, (point, figure) in enumerate(trials):
        events += of_trial(number, point, figure)
    return [*events, ev.RunCompleted(time_s=40.0, reason="all trials are done")]


def two_objectives():
    """Events of a search with two objectives, of which no trial is best in both."""
    events = [started(objectives=["val_acc:max", "n_weights:min"], direction="max", figure_of_merit="val_acc")]
    for number, (accuracy, size) in enumerate([(0.9, 1000.0), (0.8, 10.0), (0.7, 50_000.0)]):
        events.append(ev.TrialSuggested(time_s=1.0, trial=number, point={"lr": 0.1, **REST, "act": None}))
        means = {"val_acc": accuracy, "n_weights": size}
        spread = dict.fromkeys(means, 0.0)
        events.append(completed(number, accuracy, objectives=means, objectives_std=spread))
    return events
