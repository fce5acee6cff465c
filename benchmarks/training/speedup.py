"""Speed-up of 1 to 8 workers that wait for a device each, as long as the LSTM of training.py computes for a batch.

    python benchmarks/training/speedup.py > benchmarks/measured/speedup.json

Two cores cannot compute for 8 workers. So a batch is a small gradient and a wait that takes no core
(training_device.py): what is measured is the trainer, with real ranks, messages, memory, optimizer. The control is the
trainer in one process, without communication, and runs beside each measurement, so that both see the same machine; on
one that has other work, `--priority` makes that work wait.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import psutil
import training_runs as runs

SECONDS = 10.0


@dataclass(frozen=True)
class Device:
    """One kind of batch."""

    hidden: int
    wait_ms: float
    batch: int
    #: for each worker, so that an epoch is long beside its fence
    n_train: int

    @property
    def n_weights(self) -> int:
        return 795 * self.hidden + 10


#: of the LSTM: its weights and its time for a batch (measured/training_lstm.json); and, to see where a master is the
#: limit, many weights and short batches
DEVICES = {"lstm": Device(103, 23.0, 100, 8000), "large": Device(1509, 20.0, 10, 1000)}
EXCHANGES = {"in memory": (), "by messages": ("--exchange", "messages")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", nargs="+", choices=list(DEVICES), default=list(DEVICES), help="(all)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 6, 8], help="(1 2 4 6 8)")
    parser.add_argument("--exchanges", nargs="+", choices=list(EXCHANGES), default=list(EXCHANGES), help="(all)")
    parser.add_argument("--priority", action="store_true", help="run before all other work of this machine; for root")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of each measurement ({SECONDS:g})")
    arguments = parser.parse_args()
    where, found = h.machine(), {}
    with h.temporary_folder() as folder:
        for name in arguments.devices:
            found[name] = measured(name, arguments, folder / name)
    h.report("speedup", found, {}, where)


def measured(name: str, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Speed-ups of one kind of batch, and what it costs the control."""
    device = DEVICES[name]
    os.environ |= {"DEVICE_HIDDEN": str(device.hidden), "DEVICE_MS": str(device.wait_ms)}
    data = {n: runs.make_data(folder / f"data-{n}", n * device.n_train) for n in {1, *asked.workers}}
    common = ("--batch", device.batch, "--seed", 0)
    points = []
    with runs.Training("device", data[1], 1, common, folder / "control") as control:
        rank = psutil.Process(control.pids[0])
        cpu_s, began = h.cpu_s(rank), control.stamps()[-1]
        for how in asked.exchanges:
            for n in asked.workers:
                with runs.Training(
                    "device", data[n], 1 + n, (*common, *EXCHANGES[how]), folder / f"{how}-{n}"
                ) as training:
                    if asked.priority:
                        prioritise([*training.pids, *control.pids])
                    time.sleep(asked.seconds)
                    both = training.stamps(), control.stamps()
                since_s = both[0][-1, 0] - asked.seconds
                ours, one = (rate(stamps, since_s) for stamps in both)
                points.append({"exchange": how, "workers": n, "speed_up": h.rounded(ours / one)})
                h.say(f"{name} {points[-1]}, control {device.batch / one * 1e3:.1f} ms a batch")
        ended = control.stamps()[-1]
        batches = (ended[1] - began[1]) / device.batch
        cpu_ms, batch_ms = 1e3 * (h.cpu_s(rank) - cpu_s) / batches, 1e3 * (ended[0] - began[0]) / batches
    costs = {"n_weights": device.n_weights, "batch_ms": h.rounded(batch_ms), "cpu_ms": h.rounded(cpu_ms)}
    return {**costs, "points": points}


def prioritise(pids: list[int]) -> None:
    """Let all threads of these processes run before those of others; they wait most of the time."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


def rate(stamps: runs.Stamps, since_s: float) -> float:
    """Samples a second between the first and the last stamp of this time."""
    (first, *_, last) = stamps[stamps[:, 0] >= since_s]
    return float((last[1] - first[1]) / (last[0] - first[0]))


if __name__ == "__main__":
    main()
