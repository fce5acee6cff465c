"""What code of a user may do to the process of its rank, in processes of their own."""

import os

import pytest

from nnlo_opt.runtime.process import check_files, end_if_forked
from tests.helpers.launcher import python

FORKS = """
import os
from nnlo_opt.runtime.process import end_if_forked
pid, child = os.getpid(), os.fork()
end_if_forked(pid)
print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

CLOSES = """
import os
from nnlo_opt.errors import BrokenProcessError
from nnlo_opt.runtime.process import check_files
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
    assert "must close only file descriptors that it has opened" in done.out


def test_a_process_as_it_should_be_passes():
    for _ in range(2):
        check_files()
    end_if_forked(os.getpid())
