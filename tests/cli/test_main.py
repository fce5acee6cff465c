import os
import subprocess
import sys

import pytest

from nnlo_opt.cli.main import _last_words
from nnlo_opt.core.base.errors import NOTHING_BEGUN


@pytest.mark.parametrize(("rank", "words"), [(0, NOTHING_BEGUN), (1, "")])
def test_rank_0_alone_speaks_of_an_interruption_that_all_ranks_hear(rank, words):
    assert _last_words(KeyboardInterrupt(), rank) == (words, 130)


def test_a_driver_says_in_a_sentence_that_there_is_no_mpi_library():
    program = [sys.executable, "-c", "from nnlo_opt.cli.main import training_driver as drive; drive()", "--help"]
    environment = os.environ | {"MPI4PY_LIBMPI": "/no/libmpi.so"}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("`TrainingDriver` needs an MPI library. Received: none (cannot load MPI library).")
