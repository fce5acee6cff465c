from types import SimpleNamespace

import pytest

from nnlo_opt.comm.run_messages import OpenRun
from nnlo_opt.run.rank.context import ProcessContext
from nnlo_opt.run.rank.roles import RankRoles


def test_a_temporary_run_is_closed_to_other_users_on_every_node(tmp_path):
    roles = RankRoles(None, SimpleNamespace(workload=None, context=ProcessContext(), topology=None))
    own = tmp_path / "tmp" / "nnlo_opt-x"
    opened = OpenRun(directory=str(own / "run"), is_temporary=True)
    for _ in range(2):
        roles.open(opened)
        assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o755)
    with pytest.raises(PermissionError, match="drwxr-xr-x"):
        roles.open(opened)
