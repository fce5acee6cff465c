"""Damaged files for every reader of the package: bytes changed, and values changed with checksums made anew.

    python benchmarks/resilience/fuzz.py --readers journal list --inputs 100000 --seed 1 --keep DIR

The sound files come from short searches and a short training, which are made first. A reader may read a damaged file,
or refuse it by an error of the package. It may not raise anything else, take 2 seconds or a GB, crash, or return less
than there was, or something else, without a word.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
from fuzz_judge import Report, fuzz
from fuzz_readers import NAMES, Readers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--readers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--inputs", type=int, default=10_000, help="damaged files for each reader (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the first file of each kind of failure")
    arguments = parser.parse_args()
    where, counts, n_failed = h.machine(), {}, 0
    tempfile.tempdir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a sync costs nothing in memory
    with h.temporary_folder() as folder, (readers := Readers(folder)).quiet():
        for name in arguments.readers:
            reader, began_s = getattr(readers, name)(), time.monotonic()
            report = fuzz(name, reader, arguments.inputs, arguments.seed)
            n_failed += report.n_failed
            counts[name] = {**report.counts, "seconds": h.rounded(time.monotonic() - began_s)}
            h.say(f"{name}: {counts[name]}")
            for kind, (seed, edits, _, verdict) in report.cases.items():
                h.say(f"  {kind} ({verdict.detail}): {seed} after {edits}")
            if arguments.keep:
                keep(arguments.keep / name, report)
    h.report("fuzz", {"inputs": arguments.inputs, "readers": counts}, {"failed": ("<", 1, n_failed)}, where)


def keep(folder: Path, report: Report) -> None:
    """Write the cases: the file, and what made it of which seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, (seed, edits, data, verdict) in report.cases.items():
        stem = "".join(character if character.isalnum() else "-" for character in kind)[:100]
        (folder / f"{stem}.bin").write_bytes(data)
        case = {"kind": kind, "detail": verdict.detail, "seed": seed, "edits": edits}
        (folder / f"{stem}.json").write_text(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
