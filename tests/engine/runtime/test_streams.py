"""Streams whose lock a thread holds at a fork, each in a process of its own."""

import pytest

from tests.helpers.launcher import python

#: a thread that stays within its write, as nobody reads; then a child, which has a second for `CHILD`
HELD = """
import os, signal, sys, threading
from nnlo_opt.engine.runtime.streams import flush_streams, renew_streams
full, nobody = os.pipe()
class Twice:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        return self.stream.write(text)
    def flush(self):
        self.stream.flush()
sys.stdout = STREAM
thread = threading.Thread(target=lambda: sys.stdout.write("x" * 200_000), daemon=True)
thread.start()
while True:
    with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
        if file.read().split()[0] == "1":  # write
            break
if not (child := os.fork()):
    signal.alarm(20)
    renew_streams()
    CHILD
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
os._exit(0)
"""
ON_PIPE = 'open(nobody, "w", closefd=False)'


@pytest.mark.parametrize(
    ("stream", "child"),
    [
        # The new stream keeps a short text, and its descriptor is full.
        (ON_PIPE, 'print("short"); os.dup2(os.open(os.devnull, os.O_WRONLY), nobody); flush_streams()'),
        (ON_PIPE, "os.dup2(os.open(os.devnull, os.O_WRONLY), nobody); sys.stdout.close()"),
        (f"Twice({ON_PIPE})", "flush_streams(); flush_streams()"),
    ],
    ids=["is new", "may be closed", "is given up"],
)
def test_a_stream_that_another_thread_holds_keeps_no_child_waiting(stream, child):
    done = python(HELD.replace("STREAM", stream).replace("CHILD", child)).expect(0)
    assert done.err == "0\n"


LOGS = """
import io, logging, os, sys
from nnlo_opt.engine.runtime.streams import renew_streams
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
kept, sys.stderr = sys.stdout, io.StringIO()
mine = sys.stderr
if not os.fork():
    renew_streams()
    logging.info("logged")
    print(sys.stdout is kept, sys.__stdout__ is sys.stdout, sys.stderr is mine)
    print(sys.stdout.encoding == kept.encoding, sys.stdout.errors == kept.errors, flush=True)
    os._exit(0)
os.wait()
"""


def test_log_handlers_write_to_the_new_streams_and_a_stream_without_a_descriptor_stays():
    assert python(LOGS).expect(0).out == "logged\nFalse True True\nTrue True\n"


SHUT = """
import os, sys
from nnlo_opt.engine.runtime.streams import keeping_streams
with keeping_streams():
    HOW
print("out", flush=True)
print("err", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "how", ["sys.stdout.close(); sys.stderr.close()", "sys.stdout = sys.stderr = None", "sys.stdout = open(1, 'w')"]
)
def test_streams_that_code_closes_or_takes_away_are_open_after_it(how):
    done = python(SHUT.replace("HOW", how)).expect(0)
    assert (done.out, done.err) == ("out\n", "err\n")
