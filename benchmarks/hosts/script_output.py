"""How fast the output of a script is read, in a search and by `wc`: a line a `print`, unbuffered as in every trial.

The control is `wc -l` behind the same program; both take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.objective.output import Output
from nnlo_opt.engine.objective.script import Script

LINE = "step 12345 of 99999: loss 0.1234567, lr 0.00031, 1234 samples per second, eta 0:12:34"
PATTERNS = (r"epoch (?P<epoch>\d+) .* accuracy (?P<value>\S+)", r"accuracy: (?P<value>\S+)")
ENVIRON = {**os.environ, "PYTHONUNBUFFERED": "1"}


def by_search(words: list[str], patterns: tuple[str | None, str | None]) -> None:
    """Read the output as a rank does."""
    output = Output((), patterns)
    with tempfile.TemporaryDirectory() as folder:
        script = Script(words, ENVIRON, SafePath(Path(folder)) / "log", lambda line, _: output.take(line))
        while (code := script.code) is None or script.look(0.0):
            script.look(0.02 if code is None else 0.0)
        script.close()


def by_wc(words: list[str]) -> None:
    """Count the lines of the output."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENVIRON) as program:
        subprocess.run(["wc", "-l"], stdin=program.stdout, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Print the megabytes a second of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    words = [sys.executable, "-c", f"for _ in range({arguments.lines}): print({LINE!r})"]
    ways: dict[str, Callable[[], None]] = {
        "wc": lambda: by_wc(words),
        "search": lambda: by_search(words, (None, None)),
        "search_with_patterns": lambda: by_search(words, PATTERNS),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, read in ways.items():
            begun_s = time.perf_counter()
            read()
            found[name].append(arguments.lines * (len(LINE) + 1) / 1e6 / (time.perf_counter() - begun_s))
    shares = [ours / control for ours, control in zip(found["search_with_patterns"], found["wc"], strict=True)]
    medians = {f"{name}_mb_per_s": round(statistics.median(values), 1) for name, values in found.items()}
    print(json.dumps(medians | {"share_of_wc": round(statistics.median(shares), 2)}))


if __name__ == "__main__":
    main()
