"""Processes of scripts, which a test finds by a variable in their environment."""

import psutil

#: the variable; its value is the number of a test
MARK = "NNLO_OPT_TEST_OF_SCRIPTS"
#: script that forks twice, leaves its session and ignores SIGTERM, as its child and its grandchild do
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    if not os.fork():
        print("born", flush=True)
    time.sleep(600)
time.sleep(600)
"""


def marked(number: str) -> list[psutil.Process]:
    """Return the living processes with the number of a test."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environ = process.info["environ"] or {}
        if environ.get(MARK) == number and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
