import tempfile
from types import SimpleNamespace

import pytest

import nnlo_opt
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RankRoles
from nnlo_opt.core.comm.run_messages import OpenRun
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


def test_a_temporary_run_is_removed_with_folders_that_an_objective_has_nested_deeply(tmp_path, monkeypatch):
    def objective(trial):
        for level in range(50, 1101, 50):
            trial.directory.joinpath(*["d"] * level).mkdir(parents=True)
        return 1.0

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=1, hyper_opt="random")
    assert not [*tmp_path.iterdir()]
