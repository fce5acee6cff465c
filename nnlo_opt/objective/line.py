"""Line by which a script reports: to the search that has started it, or else to whoever reads its output."""

import json
import os
import socket
from typing import Any

#: environment variable with the name of the socket at which the search listens, without the zero byte before it
SOCKET = "NNLO_OPT_REPORTS"
GO_ON, STOP = b"1", b"0"


def report(epoch: int, value: float, *, checkpoint: bool = False, **figures: float) -> bool:
    """Report a value after an epoch, from a script that `--command` starts; return False if it is to stop now.

    Without a search the line of JSON that the search would read is printed, and the answer is True.

    Args:
        epoch: number of the epoch, from 1.
        value: by which trials are compared.
        checkpoint: the folder `{save}` of the command is filled, by every process of the trial. It is empty again when
            this function returns.
        figures: further numbers, for the results.
    """
    line: dict[str, Any] = {"epoch": epoch, "value": value, **figures, **({"checkpoint": True} if checkpoint else {})}
    text = json.dumps(line, default=float)
    if not (name := os.environ.get(SOCKET)):
        print(text, flush=True)
        return True
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(f"\0{name}")
            end.sendall(f"{text}\n".encode())
            return end.recv(1) == GO_ON
        except OSError:
            return False  # the search has ended
