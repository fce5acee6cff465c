"""The launcher of the tests themselves."""

import launcher
import pytest

# Only words of the shell itself: a child would be seen, or not, as a rank that runs.
FAILS_ONCE = """#!/bin/sh
if [ ! -e tried ]; then
    : > tried
    echo "{said}" >&2
    exit 1
fi
echo once more
"""


@pytest.mark.parametrize(("said", "code"), [("the listener thread failed to start", 0), ("a rank failed", 1)])
def test_a_job_whose_ranks_never_began_is_started_once_more_and_no_other(tmp_path, monkeypatch, said, code):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(FAILS_ONCE.format(said=said))
    mpirun.chmod(0o755)
    monkeypatch.setattr(launcher, "find_mpirun", lambda: str(mpirun))
    outcome = launcher.run(2, ["anything"], tmp_path, code=code)
    assert ("once more" in outcome.out) == (code == 0)
