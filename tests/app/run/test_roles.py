import tempfile
from types import SimpleNamespace

import pytest

import nnlo_opt
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RankRoles
from nnlo_opt.core.comm.run_messages import OpenRun, Renumbered
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.trials.deaths import read_notes
from nnlo_opt.space import Real


def test_a_temporary_run_is_closed_to_other_users_on_every_node(tmp_path):
    roles = RankRoles(
        None,
        SimpleNamespace(workload=SimpleNamespace(open_run=lambda run: None), context=ProcessContext(), topology=None),
    )
    own = tmp_path / "tmp" / "nnlo_opt-x"
    opened = OpenRun(directory=str(own / "run"), is_temporary=True)
    for _ in range(2):
        roles.open(opened)
        assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o755)
    with pytest.raises(PermissionError, match="drwxr-xr-x"):
        roles.open(opened)


def test_notes_of_deaths_have_the_numbers_of_a_job_that_has_joined_anew(tmp_path):
    """They would count against a trial of another team."""
    seen = []
    watchdog = SimpleNamespace(world_rank=1, report=lambda saw_death, *_, **__: seen.append(saw_death), start=lambda: 0)
    context, topology = ProcessContext(watchdog=watchdog), Topology.plan(5, 2)
    roles = RankRoles(
        None,
        SimpleNamespace(workload=SimpleNamespace(open_run=lambda run: None), context=context, topology=topology),
    )
    roles.open(OpenRun(directory=str(tmp_path), first_rank=10, first_team=4))
    roles.renumber(Renumbered(first_rank=20, first_team=8))
    seen[0](3, "its process died")
    (note,) = read_notes(tmp_path)
    assert (note.world_rank, note.team) == (23, 9)


def test_a_temporary_run_is_removed_with_folders_that_an_objective_has_nested_deeply(tmp_path, monkeypatch):
    def objective(trial):
        for level in range(50, 1101, 50):
            trial.directory.joinpath(*["d"] * level).mkdir(parents=True)
        return 1.0

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=1, hyper_opt="random")
    assert not [*tmp_path.iterdir()]
