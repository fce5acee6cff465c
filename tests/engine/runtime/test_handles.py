"""Handles: files of processes that others of the node open."""

import os

import pytest

from nnlo_opt.engine.runtime.handles import HANDLE_BYTES, Handle, memory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")


@pytest.fixture
def handle():
    file = memory("test")
    os.write(file, b"what is in it")
    return Handle.of(file)


def test_a_handle_leads_to_the_file_it_is_for(handle):
    packed = handle.pack()
    assert len(packed) == HANDLE_BYTES
    file = Handle.unpack(packed).open(os.O_RDONLY)
    assert os.read(file, 100) == b"what is in it"
    os.close(file)


def test_a_handle_of_another_process_opens_nothing_and_takes_nothing_from_its_files(handle):
    reading, writing = os.pipe()
    os.write(writing, b"x" * 64)
    empty = memory("empty")
    for other in (
        handle._replace(token=bytes(16)),
        handle._replace(token_file=reading),
        handle._replace(token_file=os.pipe()[0]),
        handle._replace(token_file=empty),
        handle._replace(token_file=9999),
        handle._replace(pid=2**31 - 1),
    ):
        with pytest.raises(OSError, match=r"process|No such|device"):
            other.open(os.O_RDONLY)
    assert len(os.read(reading, 100)) == 64
