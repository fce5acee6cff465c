"""Runs of all kinds, for tests of the page of a run."""

import math

from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Categorical, Integer, Real
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import reported
from tests.helpers.told_runs import Story

#: text that would end the script, or be HTML, if it were not escaped
EVIL = "</script><script>alert(1)</script><!-- & <b>"
SPACE = Space(
    [
        Real(1e-4, 1.0, "log-uniform", "rate"),
        Categorical(["sgd", None, EVIL], "optimizer"),
        Real(0.0, 1.0, name="momentum", condition=When("optimizer", "sgd")),
        Integer(1, 4, name="layers"),
    ]
)


def point(number):
    optimizer = ["sgd", None, EVIL][number % 3]
    momentum = {"momentum": 0.1 * (number % 10)} if optimizer == "sgd" else {}
    return {"rate": 10.0 ** -(1 + number % 3), "optimizer": optimizer, **momentum, "layers": 1 + number % 4}


def search(n_trials, figure=lambda number: 0.1 + 0.01 * number, **identity):
    """A story of complete trials, of two epochs each, on two blocks."""
    story = Story(2, search_space=SPACE.to_json(), figure_of_merit="val_loss", **identity)
    for number in range(n_trials):
        trial = story.suggest(10.0 * number, **point(number))
        assignment = story.assign(10.0 * number, trial, block=1 + number % 2)
        story.begin(10.0 * number + 1, assignment)
        for epoch in (1, 2):
            value = figure(number) / epoch * 2
            story.apply(reported(assignment, epoch, value, 10.0 * number + 1 + epoch))
        story.finish(10.0 * number + 9, assignment, figure(number))
        story.complete(10.0 * number + 9, trial, figure(number))
    return story


def fail(story, trial, reason=EVIL):
    assignment = story.assign(1000.0, trial)
    story.apply(ev.AssignmentFailed(time_s=1001.0, assignment=assignment, reason=reason))
    story.apply(ev.TrialFailed(time_s=1001.0, trial=trial, reason=reason))


def empty():
    return Ledger()


def started():
    return Story(2).ledger


def all_failed():
    story = Story(search_space=SPACE.to_json())
    for number in range(3):
        fail(story, story.suggest(0.0, **point(number)), "no memory")
    return story.ledger


def without_a_space():
    story = Story(search_space=None)
    story.trial(0.0, 5.0)
    return story.ledger


def of_a_later_version():
    story = Story(search_space={"parameters": [{"kind": "quaternion", "name": "n"}]})
    for _ in range(6):
        story.trial(0.0, 5.0)
    return story.ledger


def not_finite():
    figures = [math.inf, -math.inf, math.nan, 1.0, 2.0, 3.0]
    return search(6, figures.__getitem__).ledger


def unfinished():
    story = search(2)
    story.begin(100.0, story.assign(100.0, story.suggest(100.0, **point(2))))
    return story.ledger


def restarted_with_losses():
    story = search(2)
    assignment = story.assign(50.0, story.suggest(50.0, **point(2)))
    story.apply(ev.RanksLost(time_s=55.0, ranks=[3], block=1, team=0, n_alive=1, n_ranks=1, assignment=assignment))
    story.start(500.0)
    story.lose(500.0, assignment)
    return story.ledger


def with_folds():
    story = Story(1, search_space=SPACE.to_json())
    for number in range(6):
        trial = story.suggest(0.0, **point(number))
        for fold in range(3):
            story.finish(1.0 + fold, story.assign(1.0 * fold, trial, fold=fold, team=fold), 0.1 * number + 0.01 * fold)
        story.complete(4.0, trial, 0.1 * number + 0.01, 0.008)
    return story.ledger


def shared_by_jobs():
    story = search(2)
    story.apply(ev.TermBegan(time_s=20.0, term=1, job=1))
    for job, host in ((1, EVIL), (2, "node-2")):
        story.apply(ev.JobJoined(time_s=20.0 + job, job=job, host=host, n_ranks=5, n_teams=2, n_blocks=2))
    story.begin(30.0, story.assign(30.0, story.suggest(30.0, **point(2)), block=3, team=2))
    story.apply(ev.JobLeft(time_s=40.0, job=2, reason=EVIL, expelled=True))
    return story.ledger


LEDGERS = [empty, started, all_failed, without_a_space, of_a_later_version, not_finite]
LEDGERS += [unfinished, restarted_with_losses, with_folds, shared_by_jobs]
