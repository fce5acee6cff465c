"""CPU time that the files of many joined jobs take their leader: quiet jobs, and jobs that send messages.

Jobs are files here, on a local disk: nothing runs but the leader's `Lead.step`, in the pace of the product, and what it
answers. Time passes as fast as the machine allows.

    python benchmarks/scaling/many_jobs.py --jobs 200
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h

from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.run_messages import SharedFilesChanged
from nnlo_opt.core.jobs.files import log_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lead import Lead, Report, Search
from nnlo_opt.core.jobs.lines import Beat, Follows, Joined, LogWriter, Reported, encoded
from nnlo_opt.core.trials import events as ev

#: most of a core
SHARE = 0.05
#: seconds between two messages of each job; 0 for none
EVERY_S = (0.0, 60.0, 10.0)


class Clock:
    """Clock that is set."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return 1e9 + self.now_s


class Nothing(Search):
    """Search that decides nothing."""

    def opening(self, events: list[ev.Event], time_s: float) -> list[ev.Event]:
        return [ev.RunStarted(time_s=time_s, unix_s=1e9, n_ranks=1, n_blocks=1, identity={})]

    def asks_for_more(self, is_complete: bool) -> bool:
        return False

    def step(self, lead: Lead, reports: list[Report]) -> None:
        lead.take_news()


class Idle:
    """Teams that get nothing to do."""

    is_busy = False

    def admit(self, first_rank: int, first_team: int) -> None: ...

    def take(self, term: int, rank: int, message: Message) -> None: ...

    def reports(self) -> list[tuple[int, Message]]:
        return []

    def let_go(self) -> None: ...

    def drop(self) -> None: ...


def share(folder: Path, n_jobs: int, every_s: float, until_s: float) -> float:
    """Return the share of a core that the leader takes."""
    files, clock = FolderFiles(folder), Clock()
    leader = Job(files, clock, Idle(), Nothing())
    while leader.lead is None:
        leader.step()
        clock.now_s += 1.0
    logs = {}
    for number in range(2, n_jobs + 2):
        line = Joined(host="node", n_ranks=2, n_teams=1, unix_s=clock.unix_s())
        files.create(log_name(number), encoded(log_name(number), 0, line))
        logs[number] = LogWriter(files, log_name(number), 1)
        logs[number].append(Follows(term=leader.lead.term))
    for _ in range(5):
        leader.step()
        clock.now_s += 1.0
    message = SharedFilesChanged(trial=0, names=[]).to_json()
    began_s, cpu_s = clock.now_s, 0.0
    due = {number: began_s + (every_s or 20.0) * place / n_jobs for place, number in enumerate(logs)}
    while clock.now_s < began_s + until_s:
        for number, at_s in due.items():
            if at_s <= clock.now_s:
                logs[number].append(Reported(rank=1, message=message) if every_s else Beat(unix_s=clock.unix_s()))
                due[number] += every_s or 20.0
        before_s = time.process_time()
        leader.step()
        cpu_s += time.process_time() - before_s
        clock.now_s += max(leader.pause_s, 0.1)
    return cpu_s / until_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the jobs' time")
    options = parser.parse_args()
    where, found = h.machine(), {}
    for every_s in EVERY_S:
        with h.temporary_folder() as folder:
            name = f"a message every {every_s:g} s" if every_s else "quiet"
            found[name] = h.rounded(share(folder, options.jobs, every_s, options.seconds), 3)
    targets = {name: ("<", SHARE, value) for name, value in found.items()}
    h.report("many_jobs", {"jobs": options.jobs, "share_of_a_core": found}, targets, where)


if __name__ == "__main__":
    main()
