"""The output of a rank, in processes of their own: it takes the logging and the descriptors of its process."""

import pytest

from tests.helpers.launcher import python

SAYS = """
import logging, os, sys
from pathlib import Path
from nnlo_opt.core.base.logs import WHOLE
from nnlo_opt.engine.runtime.log import RankOutput
output = RankOutput(int(sys.argv[1]), "warn", to_terminal=sys.argv[1] == "0")
output.open_log(Path(sys.argv[2]))
WHOLE.info("all %s", "of it")
if sys.argv[1] == "2":
    os.closerange(3, 64)
logging.getLogger("nnlo_opt").warning("a file says %s", "\\x1b[2J")
output.tell_terminal("a sentence\\x1b[2J")
"""


def run(rank, folder):
    done = python(SAYS, rank, folder)
    assert "Traceback" not in done.err
    return done


@pytest.mark.parametrize("rank", [0, 1])
def test_the_log_of_a_rank_has_what_is_shortened_elsewhere_and_the_terminal_has_not(tmp_path, rank):
    shown, log = run(rank, tmp_path).err, (tmp_path / f"logs/rank-0000{rank}.log").read_text()
    assert shown.splitlines()[-1] == "a sentence\\u001b[2J"
    assert "all of it" in log
    assert "all of it" not in shown
    assert "a file says \\u001b[2J\n" in (log if rank else shown)


def test_a_rank_whose_terminal_was_closed_speaks_to_its_log(tmp_path):
    run(2, tmp_path)
    assert "a sentence" in (tmp_path / "logs/rank-00002.log").read_text()
