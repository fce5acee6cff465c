from pathlib import Path

from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.trial import Assignment, FoldResult, UnrecordedFold

FOLD = UnrecordedFold(
    assignment=7,
    trial=3,
    fold=1,
    attempt=2,
    point={"x": 0.5, "layers": [3, 4]},
    result=FoldResult(figure_of_merit=0.25, metrics={"val_loss": 0.25}, n_epochs=4, train_s=1.5),
    reason="4 epochs are done",
)


def test_what_is_kept_is_read_again_until_it_is_forgotten(tmp_path: Path) -> None:
    assert unrecorded.read(tmp_path) == ()
    unrecorded.keep(tmp_path, FOLD)
    unrecorded.keep(tmp_path, FOLD)  # by a master that hears of the coordinator's death twice
    assert unrecorded.read(tmp_path) == (FOLD,)
    unrecorded.forget(tmp_path)
    assert unrecorded.read(tmp_path) == ()
    unrecorded.forget(tmp_path)


def test_it_is_of_one_assignment_at_one_point_alone() -> None:
    def assignment(**changes: int) -> Assignment:
        own = {"number": 7, "trial": 3, "fold": 1, "attempt": 2, "block": 1, "team": 0, "n_ranks": 2, **changes}
        return Assignment(assigned_at_s=0.0, **own)

    assert FOLD.is_of(assignment(), {"x": 0.5, "layers": [3, 4]})
    assert not FOLD.is_of(assignment(), {"x": 0.6, "layers": [3, 4]})
    for other in ({"number": 8}, {"trial": 2}, {"fold": 0}, {"attempt": 1}):
        assert not FOLD.is_of(assignment(**other), FOLD.point)


def test_what_is_no_regular_file_is_passed_over(tmp_path: Path, irregular) -> None:
    unrecorded.keep(tmp_path, FOLD)
    irregular(tmp_path / unrecorded.FOLDER / "assignment-000008.json")
    assert unrecorded.read(tmp_path) == (FOLD,)
