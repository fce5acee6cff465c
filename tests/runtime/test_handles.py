"""Cards: files of processes that others of the node open."""

import os

import pytest

from nnlo_opt.runtime.handles import CARD_BYTES, Card, memory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


@pytest.fixture
def card():
    file = memory("test")
    os.write(file, b"what is in it")
    return Card.of(file)


def test_a_card_leads_to_the_file_it_is_for(card):
    packed = card.pack()
    assert len(packed) == CARD_BYTES
    file = Card.unpack(packed).open(os.O_RDONLY)
    assert os.read(file, 100) == b"what is in it"
    os.close(file)


def test_a_card_of_another_process_opens_nothing_and_takes_nothing_from_its_files(card):
    reading, writing = os.pipe()
    os.write(writing, b"x" * 64)
    empty = memory("empty")
    for other in (
        card._replace(token=bytes(16)),
        card._replace(token_file=reading),
        card._replace(token_file=os.pipe()[0]),
        card._replace(token_file=empty),
        card._replace(token_file=9999),
        card._replace(pid=2**31 - 1),
    ):
        with pytest.raises(OSError, match=r"process|No such|device"):
            other.open(os.O_RDONLY)
    assert len(os.read(reading, 100)) == 64
