"""The launcher of the tests themselves."""

import launcher
import pytest

FLAKY = """#!/bin/sh
echo "{said}"
if [ ! -e tried ]; then
    touch tried
    echo "the listener thread failed to start" >&2
    exit 1
fi
echo once more
"""


@pytest.mark.parametrize(("said", "code"), [("", 0), ("a rank ran", 1)])
def test_a_job_whose_ranks_never_began_is_started_once_more_and_no_other(tmp_path, monkeypatch, said, code):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(FLAKY.format(said=said).replace('echo ""\n', ""))
    mpirun.chmod(0o755)
    monkeypatch.setattr(launcher, "find_mpirun", lambda: str(mpirun))
    outcome = launcher.run(2, ["anything"], tmp_path)
    assert outcome.code == code
    assert ("once more" in outcome.out) == (code == 0)
