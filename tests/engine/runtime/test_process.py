"""What code of a user may do to the process of its rank, in processes of their own."""

import os

import pytest

from nnlo_opt.engine.runtime.process import check_files, end_if_forked
from tests.helpers.launcher import python

FORKS = """
import os
from nnlo_opt.engine.runtime.process import end_if_forked
pid, child = os.getpid(), os.fork()
end_if_forked(pid)
print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

LEAVES = """
import os, sys
from nnlo_opt.engine.runtime.process import code_of_user
parent = os.getpid()
try:
    with code_of_user():
        if not (child := os.fork()):
            print("of the child")
            HOW
        else:
            print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
finally:
    print("undone by the parent" if os.getpid() == parent else "undone by the child")
"""


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no room')", 1, "no room\n"),
        ("raise OSError('its own')", 1, "OSError: its own"),
        ("pass", 1, "must end by itself"),
    ],
)
def test_a_child_ends_where_code_of_a_user_ends_and_undoes_nothing(how, code, says):
    done = python(LEAVES.replace("HOW", how)).expect(0)
    assert done.out == f"of the child\ncode {code}\nundone by the parent\n"
    assert says in done.err if says else not done.err


CLOSES = """
import os
from nnlo_opt.core.base.errors import BrokenProcessError
from nnlo_opt.engine.runtime.process import check_files
check_files()
os.closerange(3, 64)
again = [os.open(os.devnull, os.O_RDONLY) for _ in range(60 * REOPENS)]
try:
    check_files()
except BrokenProcessError as error:
    print(error)
"""


def test_a_child_that_returns_is_ended_with_a_sentence_and_its_parent_continues():
    done = python(FORKS).expect(0)
    assert done.out == "code 1\n"
    assert "must end by itself" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("reopens", [0, 1])
def test_a_process_whose_files_were_closed_is_broken(reopens):
    done = python(CLOSES.replace("REOPENS", str(reopens))).expect(0)
    assert "must close only file descriptors that it opened itself" in done.out


def test_a_process_as_it_should_be_passes():
    for _ in range(2):
        check_files()
    end_if_forked(os.getpid())
