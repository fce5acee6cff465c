from nnlo_opt.core.trials import deaths
from nnlo_opt.core.trials.deaths import Death

DEATH = Death(world_rank=3, team=1, host="node-1", how="killed by signal 9")


def test_notes_are_read_until_they_are_removed(tmp_path):
    assert deaths.read_notes(tmp_path) == []
    deaths.leave_note(tmp_path, DEATH)
    deaths.leave_note(tmp_path, Death(how="the job died"))
    assert deaths.read_notes(tmp_path) == [DEATH, Death(how="the job died")]
    deaths.remove_notes(tmp_path)
    assert deaths.read_notes(tmp_path) == []


def test_a_note_that_is_no_regular_file_is_passed_over(tmp_path, irregular):
    deaths.leave_note(tmp_path, DEATH)
    irregular(tmp_path / deaths.FOLDER / "0.json")
    assert deaths.read_notes(tmp_path) == [DEATH]
