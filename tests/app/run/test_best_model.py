import json
from pathlib import Path

import pytest

from nnlo_opt.app.run.afterwards.best_model import BEST_MODEL, best_fold, kept_epoch, save_model
from nnlo_opt.app.run.start.serving_ranks import RankDiedError
from nnlo_opt.core.base.errors import OutOfTimeError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.comm.run_messages import ModelExported
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.checkpoint import fold_directory
from tests.helpers.told_runs import Story


def trial_with(*figures):
    """A trial of which fold i has finished with the i-th figure of merit."""
    story = Story()
    trial = story.suggest(0.0, n=1)
    for fold, figure in enumerate(figures):
        story.finish(1.0, story.assign(0.0, trial, fold=fold), figure)
    return story.ledger.trials[0]


class Ranks:
    """Answer as they are said to; an exception is raised."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def ask(self, rank, question, kind):
        self.asked.append(rank)
        self.question = question
        answer = self.answers[rank]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, kind)
        return answer


@pytest.mark.parametrize(("direction", "fold"), [("min", 1), ("max", 0)])
def test_the_model_of_the_best_fold_is_kept_and_of_two_as_good_the_first(direction, fold):
    trial = trial_with(0.9, 0.2, 0.2, 0.9)
    assert best_fold(trial, direction) == fold


def test_the_first_rank_that_lives_saves_the_model(tmp_path):
    trial = trial_with(0.9, 0.2)
    saved = ModelExported(path="m.keras")
    ranks = Ranks({4: RankDiedError("Rank 4 has died."), 2: saved, 3: saved})
    assert save_model(ranks, [4, 2, 3], tmp_path, trial, "min") == saved
    assert ranks.asked == [4, 2]
    assert ranks.question.point == {"n": 1}
    assert ranks.question.weights_path == str(fold_directory(tmp_path, 0, 1))
    assert Path(ranks.question.path) == tmp_path / BEST_MODEL


def test_the_model_of_a_fold_that_a_second_job_has_finished_is_that_of_its_attempt(tmp_path):
    story = Story()
    trial = story.suggest(0.0, n=1)
    story.apply(ev.TermBegan(time_s=0.0, term=3, job=1))
    story.lose(1.0, story.assign(0.0, trial))
    story.finish(2.0, story.assign(1.0, trial), 0.5)
    ranks = Ranks({2: ModelExported(path="m.keras")})
    save_model(ranks, [2], tmp_path, story.ledger.trials[0], "min")
    assert ranks.question.weights_path == str(fold_directory(tmp_path, 0, 0) / "attempt-3-1")
    for number in (0, 1):
        place = fold_directory(tmp_path, 0, 0) / f"attempt-3-{number}"
        make_directory(place)
        history = {"epochs": [], "workers": {}, "staleness": {}, "train_s": 1.0, "kept_epoch": 4 + number}
        (place / "history.json").write_bytes(json.dumps(history).encode())
    assert kept_epoch(tmp_path, story.ledger.trials[0], 0) == 5


def test_where_no_rank_can_save_the_model_the_reason_is_told(tmp_path):
    trial = trial_with(0.5)
    dead = Ranks({1: RankDiedError("Rank 1 has died."), 2: RankDiedError("Rank 2 has died.")})
    assert save_model(dead, [1, 2], tmp_path, trial, "min") == ModelExported(path="", error="Rank 2 has died.")
    late = Ranks({1: OutOfTimeError("no time")})
    assert save_model(late, [1, 2], tmp_path, trial, "min").error == "no time"
    assert late.asked == [1], "the others have no more time than the first"
