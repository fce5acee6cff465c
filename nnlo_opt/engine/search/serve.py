"""Search process, `python -m nnlo_opt.engine.search.serve`: answers requests, one JSON object per line.

Requests are read from standard input, and answers written to standard output. Output of user modules and libraries goes
to standard error. The process does not use MPI. It exits at the end of standard input, so it never outlives the
coordinator.
"""

import faulthandler
import json
import os
import signal
import sys

from nnlo_opt.engine.runtime.environment import THREAD_VARIABLES


def main() -> None:
    """Answer requests until standard input ends."""
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)  # shows where a hanging search was
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    # Fits are small: more threads would only compete with the training ranks.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))

    from nnlo_opt.engine.runtime.process import code_of_user
    from nnlo_opt.engine.search.handler import SearchHandler  # imports NumPy, which reads these variables

    session = SearchHandler()
    for line in requests:
        with code_of_user():
            answer = session.handle(json.loads(line))
        if answer is not None:
            print(json.dumps(answer, allow_nan=False), file=answers, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
