"""Jobs that share a run, in plain data and in words."""

from collections import Counter
from typing import Any

from nnlo_opt.app.reporting.words import counted, duration_text, for_terminal
from nnlo_opt.core.trials.joined_job import JoinedJob
from nnlo_opt.core.trials.ledger import Ledger

#: most jobs that are here, and most that have gone, in a short text
_MOST_HERE, _MOST_GONE = 5, 3


def jobs_of(ledger: Ledger, now_s: float) -> list[dict[str, Any]]:
    """Return the jobs of a shared run: the one that leads, others that are here, then those that have gone, last first.

    `state` is "leads", "follows", "left" or "expelled". `running` has trial and fold of what a job works on.
    """
    running: dict[int, list[dict[str, int]]] = {}
    for _, trial in sorted(ledger.under_way.items()):
        for a in trial.running:
            if (job := ledger.job_of(a)) is not None:
                running.setdefault(job.number, []).append({"trial": a.trial, "fold": a.fold})
    here = sorted(ledger.jobs_here, key=lambda job: (job.number != ledger.leader, job.number))
    gone = [job for job in ledger.jobs.values() if not job.is_here]
    gone.sort(key=lambda job: (job.left_at_s or 0.0, job.number), reverse=True)
    return [
        {
            "job": job.number,
            "host": job.host,
            "state": state_of_job(job, ledger),
            "n_ranks": job.n_ranks,
            "blocks": [*job.blocks],
            "joined_s": job.joined_at_s,
            "left_s": job.left_at_s,
            "here_s": (now_s if job.left_at_s is None else job.left_at_s) - job.joined_at_s,
            "gone_s": None if job.left_at_s is None else now_s - job.left_at_s,
            "reason": job.reason,
            "running": running.get(job.number, []),
        }
        for job in [*here, *gone]
    ]


def state_of_job(job: JoinedJob, ledger: Ledger) -> str:
    """Return "leads", "follows", "left" or "expelled"."""
    if job.is_here:
        return "leads" if job.number == ledger.leader else "follows"
    return "expelled" if job.expelled else "left"


def job_counts(ledger: Ledger) -> dict[str, int]:
    """Return how many jobs of a shared run are here, have left, and have been expelled."""
    states = [state_of_job(job, ledger) for job in ledger.jobs.values()]
    n_gone = {state: states.count(state) for state in ("left", "expelled")}
    return {"here": len(states) - sum(n_gone.values()), **n_gone}


def blocks_text(blocks: list[int]) -> str:
    """Return the numbers of a job's blocks: "block 2", "blocks 3-6"."""
    return f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {blocks[0]}-{blocks[-1]}"


def trials_text(running: list[dict[str, int]], most: int = 4) -> str:
    """Return the numbers of the trials that a job works on, each once; a dash without any."""
    numbers = list(dict.fromkeys(str(one["trial"]) for one in running))
    return ", ".join(numbers[:most]) + ", …" * (len(numbers) > most) or "-"


def job_lines(jobs: list[dict[str, Any]], *, is_over: bool) -> list[str]:
    """Return a line for each job, of `jobs_of`, or one line for all of them after the end; none without jobs."""
    here = [job for job in jobs if job["left_s"] is None]
    gone = [job for job in jobs if job["left_s"] is not None]
    if is_over:
        counts = Counter(job["state"] for job in gone)
        how = ", ".join(f"{n} {state}" for state, n in sorted(counts.items(), reverse=True))
        return [f"Shared by {counted(len(jobs), 'job')}{f' ({how})' * bool(how)}."] if jobs else []
    lines = [_here_text(job) for job in here[:_MOST_HERE]]
    lines += [f"… and {counted(len(here) - _MOST_HERE, 'job')} more."] * (len(here) > _MOST_HERE)
    lines += [_gone_text(job) for job in gone[:_MOST_GONE]]
    return lines + [f"… and {counted(len(gone) - _MOST_GONE, 'earlier job')}."] * (len(gone) > _MOST_GONE)


def joined_text(job: JoinedJob) -> str:
    """Return the line of a job that has joined."""
    size = f"{counted(job.n_ranks, 'rank')}, {blocks_text([*job.blocks])}"
    return f"job {job.number} on {_on_a_line(job.host)} joins: {size}"


def left_text(job: JoinedJob) -> str:
    """Return the line of a job that has left or was expelled."""
    why = f": {_on_a_line(job.reason)}" if job.reason else ""
    return f"job {job.number} on {_on_a_line(job.host)} {'is expelled' if job.expelled else 'leaves'}{why}"


def standing_text(job: dict[str, Any]) -> str:
    """Return host and state of a job, if there is more to say than that it is here, with the reason."""
    why = f": {job['reason']}" * bool(job["reason"])
    return _on_a_line(job["host"] + f" {job['state']}{why}" * (job["state"] != "follows"))


def _on_a_line(text: str) -> str:
    return for_terminal(" ".join(text.split()))


def _here_text(job: dict[str, Any]) -> str:
    who = f"Job {job['job']} on {_on_a_line(job['host'])}{' leads' * (job['state'] == 'leads')}"
    what = f", trial {trials_text(job['running'])}" if job["running"] else ", idle"
    size = f"{counted(job['n_ranks'], 'rank')}, {blocks_text(job['blocks'])}"
    return f"{who}: {size}{what}, for {duration_text(job['here_s'])}."


def _gone_text(job: dict[str, Any]) -> str:
    why = f": {_on_a_line(job['reason']).rstrip('.')}" if job["reason"] else ""
    how = "was expelled" if job["state"] == "expelled" else "left"
    when = f"{duration_text(job['gone_s'])} ago, after {duration_text(job['here_s'])}"
    return f"Job {job['job']} on {_on_a_line(job['host'])} {how} {when}{why}."
