"""Search process, `python -m nnlo_opt.engine.search.serve`: answers a `SearchHandler`'s requests, a JSON object a line.

Requests come by standard input and answers leave by standard output. Output of a user's module or a library goes to
standard error instead. The process does not use MPI. It ends when its standard input ends, so it never outlives the
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
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)  # says where a search was that is stuck
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    # Fits are small: more than one thread would only compete with the ranks that train.
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
