"""Saves of an objective: two ranks killed in the middle of them, and what a save costs beside plain writing.

`kills`: a search whose only trial does nothing but save is killed with all ranks, again and again, and resumed. What
is found then must be the last save that was complete, or the one that was under way, with the parts of both ranks.

`cost`: two ranks save 50 MB each, in turns with writing the same twice to plain files and waiting for the disk.
"""

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h

from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.engine.objective.checkpoint import last_save

HEAD = """
import os, time
from pathlib import Path
from nnlo_opt.space import Real


def part(rank, epoch):
    return f"{rank} {epoch} ".encode() * 20_000


def objective(parameters, comm, report, checkpoint):
"""
TAIL = """
objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""
KILLS = f"""{HEAD}
    for rank, folder in enumerate(checkpoint.folders):
        assert {{path.read_bytes() for path in folder.rglob("*.bin")}} == {{part(rank, checkpoint.epoch)}}

    def write(folder):
        (folder / "inner").mkdir()
        for place in ("a.bin", "inner/b.bin", "inner/c.bin"):
            (folder / place).write_bytes(part(comm.rank, epoch))

    with open("saved", "a") as saved:
        for epoch in range(checkpoint.epoch + 1, 10**9):
            checkpoint.save(epoch, write)
            if comm.rank == 0:
                print(epoch, file=saved, flush=True)
            report(epoch, 1.0)
{TAIL}"""
COST = f"""{HEAD}
    data = os.urandom(50_000_000)
    plain = Path(f"plain-{{comm.rank}}")

    def timed(function):
        comm.Barrier()
        began_s = time.perf_counter()
        function()
        comm.Barrier()
        return time.perf_counter() - began_s

    def write_twice():
        for _ in range(2):
            with plain.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            plain.unlink()

    for n in range(1, 1 + int(os.environ["REPEATS"])):
        save_s = timed(lambda: checkpoint.save(n, lambda folder: (folder / "data").write_bytes(data)))
        twice_s = timed(write_twice)
        report(n, save_s / twice_s, save_s=save_s, twice_s=twice_s)
    return save_s / twice_s
{TAIL}"""


def job(folder: Path, text: str) -> h.Job:
    (folder / "objective.py").write_text(text)
    options = [
        "--model",
        "objective.py",
        "--block-size",
        2,
        "--num-iterations",
        1,
        "--opt-restore",
        "--max-attempts",
        10**6,
    ]
    return h.Job("OptimizationDriver", 3, options, folder, timeout_s=300)


def kill_once(folder: Path, rng: random.Random) -> bool:
    """Kill all ranks at a random moment of their saves; return True if what is found is the last save, or the next."""
    saved = folder / "saved"
    size = saved.stat().st_size if saved.exists() else 0
    with job(folder, KILLS) as running:
        assert running.watch(lambda: saved.exists() and saved.stat().st_size > size, 0.005)
        ranks = running.ranks()
        time.sleep(rng.uniform(0.0, 0.1))
        for process in ranks.values():
            os.kill(process.pid, signal.SIGKILL)
    known = int(saved.read_text().split()[-1])
    found = last_save(fold_directory(folder / "run", 0, 0))
    return found is not None and known <= found.epoch <= known + 1 and len(found.place.glob("rank-*")) == 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    where, rng, n_right = h.machine(), random.Random(0), 0
    with h.temporary_folder() as folder:
        for number in range(arguments.kills):
            h.say(f"kill {number + 1} of {arguments.kills}")
            n_right += kill_once(folder, rng)
        last = (folder / "saved").read_text().split()[-1] if arguments.kills else "0"
    os.environ["REPEATS"] = str(arguments.repeats)
    with h.temporary_folder() as folder, job(folder, COST) as running:
        running.wait()
        reports = [event["metrics"] for event in h.events_of(running.run_directory, "EpochEnded")]
    ratios = [report["value"] for report in reports]
    results = {
        "kills": arguments.kills,
        "saves": int(last),
        "restored_rightly": n_right,
        "save_takes_times_of_writing_twice": h.spread(ratios),
        "save_s": h.spread([report["save_s"] for report in reports]),
    }
    targets: dict[str, h.Target] = {
        "kills after which the last save, or the next, is there": (">=", arguments.kills, n_right),
        "a save, in times of writing twice": ("<", 1.0, median(ratios)),
    }
    h.report("saves", results, targets, where)


if __name__ == "__main__":
    main()
