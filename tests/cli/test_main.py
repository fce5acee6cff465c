import pytest

from nnlo_opt.cli.main import _last_words
from nnlo_opt.runtime.preemption import NOTHING_BEGUN


@pytest.mark.parametrize(("rank", "words"), [(0, NOTHING_BEGUN), (1, "")])
def test_rank_0_alone_speaks_of_an_interruption_that_all_ranks_hear(rank, words):
    assert _last_words(KeyboardInterrupt(), rank) == (words, 130)
