"""What the guide says of Slurm, tried on a real Slurm of four nodes on this machine.

Each trial below is one statement of docs/guide/hosts.md or docs/guide/jobs.md. It types the commands that a user would
type, keeps them with their output for `--transcript`, and fails if the statement does not hold. The last line is one
JSON object.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import nodes
import slurm_cluster
from harness import ROOT, environment, say
from slurm_cluster import NODES, Cluster

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.testing.mpirun import find_mpirun
from nnlo_opt.tools.launcher.job import has_ulfm

HERE = Path(__file__).parent
#: where each node finds what all share; /tmp is each node's own
SHARED = Path("/var/tmp")
N_RANKS, PER_NODE = 8, 2
END_S = 200.0
SEARCH = "--model objective.py --hyper-opt random --opt-restore"


class Trial:
    """Working directory of one statement, with the transcript of its commands.

    Args:
        cluster: the Slurm.
        name: the statement's, in the transcript.
        trial_s: seconds of a trial of the searches.
    """

    def __init__(self, cluster: Cluster, name: str, trial_s: float) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / "jobs" / name
        self.folder.mkdir(parents=True)
        shutil.copy(HERE / "slurm_objective.py", self.folder / "objective.py")
        self.lines: list[str] = []
        self._begun_s = time.monotonic()
        mine = {"PRTE_MCA_rmaps_default_mapping_policy": "", "TRIAL_S": f"{trial_s:g}"}
        ours = {**environment(), **mine, "SLURM_CONF": cluster.environment["SLURM_CONF"]}
        self._environment = {name: value for name, value in ours.items() if value}

    def type(self, command: str, **variables: str) -> str:
        """Run a command line; return what it prints, which goes to the transcript."""
        now_s = time.monotonic() - self._begun_s
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env={**self._environment, **variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=END_S,
            check=False,
        )
        given = "".join(f"{name}={value} " for name, value in variables.items())
        code = f"[exit code {done.returncode}]\n" if done.returncode else ""
        self.lines.append(f"{now_s:5.0f} s $ {given}{command}\n{done.stdout}{code}")
        return done.stdout

    def submit(self, options: str = "", **variables: str) -> str:
        """Submit `job.sh`; return the number of the job."""
        text = self.type(f"sbatch {options} --output=out-%j job.sh".replace("  ", " "), **variables)
        found = re.search(r"Submitted batch job (\d+)", text)
        assert found, text
        return found[1]

    def plan(self, n_trials: int, n_ranks: int = N_RANKS, more: str = "", edit: str = "") -> None:
        """Write `job.sh`, the batch script that `nnlo-opt plan` prints, edited by `sed` if the trial needs it."""
        driver = f"{SEARCH} --checkpoint run --num-iterations {n_trials}{more}"
        plan = f"nnlo-opt plan -n {n_ranks} --block-size 1 --node-cores {PER_NODE} --scheduler slurm --walltime 10m"
        sed = f" | sed '{edit}'" if edit else ""
        self.type(f"{plan} -- {driver} | sed -n '/^#!/,$p'{sed} > job.sh; cat job.sh")

    def until(self, what: str, is_so: Callable[[], bool], timeout_s: float = END_S) -> float:
        """Wait; return how long in seconds, which the transcript has, too."""
        begun_s = time.monotonic()
        while not is_so():
            assert time.monotonic() - begun_s < timeout_s, f"not within {timeout_s:g} s: {what}"
            time.sleep(0.2)
        waited_s = time.monotonic() - begun_s
        self.lines.append(f"{time.monotonic() - self._begun_s:5.0f} s   ({what}, after {waited_s:.0f} s)\n")
        return waited_s

    def until_state(self, job: str, *states: str) -> float:
        """Wait until a job is in one of some states."""
        return self.until(f"job {job} is {' or '.join(states)}", lambda: self.cluster.job(job, "JobState") in states)

    def until_trials(self, n: int, run: str = "run") -> None:
        """Wait until the journal has so many complete trials."""
        self.until(f"{n} trials are complete", lambda: self._text(run).count('"TrialCompleted"') >= n)

    def kill_mpirun(self, task: int) -> None:
        """Kill the `mpirun` of a task of an array, wherever it runs."""
        wanted = {f"SLURM_CONF={self._environment['SLURM_CONF']}", f"SLURM_ARRAY_TASK_ID={task}"}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
                if (process / "comm").read_text().strip() in ("mpirun", "prterun") and wanted <= set(words):
                    os.kill(int(process.name), signal.SIGKILL)
        now_s = time.monotonic() - self._begun_s
        self.lines.append(f"{now_s:5.0f} s   (`mpirun` of task {task} is killed)\n")

    def show(self, job: str) -> str:
        """Print what a job has written."""
        return self.type(f"grep -a -v -e ' starts on block ' -e ' complete: ' out-{job}")

    def hosts(self) -> Counter[str]:
        """Return how many trials have begun on each node."""
        return Counter((self.folder / "hosts").read_text().split())

    def check(self, n_trials: int, run: str = "run") -> int:
        """Check that a run is complete with each trial done once; return the number of its starts."""
        ledger = read_ledger(self.folder / "checkpoints" / run)
        assert ledger.complete, f"{run} is not complete"
        assert ledger.n_by_state()["complete"] == n_trials == len(ledger.trials)
        done = Counter(re.findall(r'"event": ?"TrialCompleted".*?"trial": ?(\d+)', self._text(run)))
        assert set(done.values()) <= {1}, f"trials were done twice: {done}"
        return len(ledger.sessions)

    def _text(self, run: str) -> str:
        path = self.folder / "checkpoints" / run / "journal.jsonl"
        return path.read_text() if path.exists() else ""


# ---------------------------------------------------------------- the statements


def planned(trial: Trial) -> None:
    """The script that `nnlo-opt plan` prints runs on all nodes of the job, as many ranks on each as it says."""
    trial.plan(14)
    trial.type("sinfo")
    job = trial.submit("--wait")
    trial.show(job)
    trial.type("sort hosts | uniq -c")
    assert set(trial.hosts()) == set(NODES), "a node had no rank"
    assert "nodes that this job has" not in trial.show(job)
    assert trial.check(14) == 1


def one_node(trial: Trial) -> None:
    """Open MPI's mapping policy `:oversubscribe` puts all ranks on the first node, and the driver says so."""
    trial.plan(7)
    job = trial.submit("--wait", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
    assert "The 8 ranks use 1 of the 4 nodes that this job has." in trial.show(job)
    trial.type("sort hosts | uniq -c")
    assert set(trial.hosts()) == {"n1"}
    trial.type("rm -r checkpoints hosts")
    job = trial.submit("--wait", PRTE_MCA_rmaps_default_mapping_policy="slot:oversubscribe")
    assert "nodes that this job has" not in trial.show(job)
    trial.type("sort hosts | uniq -c")
    assert set(trial.hosts()) == set(NODES)


def examined(trial: Trial) -> None:
    """`nnlo-opt doctor` in a batch script says if ranks leave nodes of the job idle, and tries messages."""
    trial.type(r"printf '#!/bin/sh\nnnlo-opt doctor --timeout 30\n' > job.sh")
    for policy in (":oversubscribe", "slot:oversubscribe"):
        job = trial.submit(
            "--wait --nodes=4 --ntasks=8 --ntasks-per-node=2", PRTE_MCA_rmaps_default_mapping_policy=policy
        )
        said = trial.show(job)
        assert ("ranks use 1 of the 4 nodes that this job has" in said) == policy.startswith(":")
        assert ("2 on n1, 2 on n2, 2 on n3, 2 on n4." in said) == policy.startswith("slot")
        assert ("Messages n1 to n2: " in said) == policy.startswith("slot")


def preempted(trial: Trial) -> None:
    """A job of a partition with a higher priority preempts the search, which is requeued, and completes.

    With `SlurmctldParameters=preempt_send_user_signal` it hears of that at once, else at the end of the grace time.
    Then steps, which ranks on other nodes belong to, get SIGTERM at its beginning, and the launcher starts them again.
    """
    config = trial.type("scontrol show config | grep -e ^Preempt -e ^KillWait -e ^SlurmctldParameters")
    is_early = "preempt_send_user_signal" in config
    n_trials = 35 if is_early else 140  # longer than the grace time
    trial.plan(n_trials, edit="s/--grace 90/--grace 12/")
    job = trial.submit()
    trial.until_trials(3)
    high = "sbatch --partition=high --nodes=4 --exclusive --output=high-%j --wrap='srun hostname; sleep 5'"
    urgent = trial.type(high).split()[-1]
    heard = lambda: "the ranks have" in (trial.folder / f"out-{job}").read_text()  # noqa: E731
    waited_s = trial.until("the launcher hears of it", heard)
    assert (waited_s < slurm_cluster.GRACE_S / 2) == is_early, f"it heard after {waited_s:.0f} s"
    trial.until_state(urgent, "COMPLETED")
    trial.type(
        f"squeue; cat high-{urgent}; scontrol show job {job} | grep -e JobState -e Requeue -e Preempt -e StartTime"
    )
    trial.until_state(job, "COMPLETED")
    trial.show(job)
    assert trial.check(n_trials) == 2 or not is_early
    assert trial.cluster.job(job, "Restarts") == "1"


def out_of_time(trial: Trial) -> None:
    """`--signal=B:USR1@...` comes before the time limit; the search saves itself, is requeued, and completes."""
    trial.plan(140)
    job = trial.submit("--time=2 --signal=B:USR1@70")
    trial.until("it is requeued", lambda: trial.cluster.job(job, "Restarts") != "0")
    trial.type(f"squeue; scontrol show job {job} | grep -e JobState -e Requeue -e StartTime")
    trial.until_state(job, "COMPLETED")
    trial.show(job)
    assert trial.check(140) >= 2


def cancelled(trial: Trial) -> None:
    """`scancel --batch --signal=TERM` lets a search end in order, with USR1 also requeues it; plain `scancel` ends it.

    Each time the same script resumes it.
    """
    trial.plan(84)
    job = trial.submit()
    trial.until_trials(3)
    trial.type(f"scancel --batch --signal=USR1 {job}")
    trial.until("it is requeued", lambda: trial.cluster.job(job, "Restarts") == "1")
    trial.until_trials(14)
    trial.type(f"scancel --batch --signal=TERM {job}")
    trial.until_state(job, "FAILED")
    assert trial.cluster.job(job, "ExitCode") == "75:0"
    trial.show(job)
    job = trial.submit()
    trial.until_trials(35)
    trial.type(f"scancel {job}")
    trial.until_state(job, "CANCELLED")
    trial.type(f"squeue; scontrol show job {job} | grep -e JobState -e Restarts")
    trial.show(job)
    last = trial.submit("--wait")
    trial.show(last)
    assert trial.check(84) == 4


def array(trial: Trial) -> None:
    """A job array makes one search a task, each with a run directory of its own."""
    edit = "s/--checkpoint run/--checkpoint run-$SLURM_ARRAY_TASK_ID --seed $SLURM_ARRAY_TASK_ID/"
    trial.plan(4, n_ranks=2, edit=edit)
    trial.type("sbatch --wait --array=1-4 --output=out-%a job.sh; tail -n 1 out-?; ls checkpoints")
    for number in range(1, 5):
        assert trial.check(4, f"run-{number}") == 1
    trial.type("sort hosts | uniq -c")
    assert len(trial.hosts()) > 1, "all searches ran on one node"


#: what this machine changes in the script of docs/guide/jobs.md
JOINED = {
    "--array=1-20": "--array=1-6",
    "--ntasks=9": "--ntasks=3",
    "--time=04:00:00": "--time=00:08:00",
    "USR1@120": "USR1@360",  # after one to two minutes
    "net.py --block-size 4 --num-iterations 500": "objective.py --hyper-opt random --block-size 1 --num-iterations 360",
    "/scratch/me/big": "run",
    "--join": "--join 30s",
    "--grace 90": "--grace 12",
}


def joined(trial: Trial) -> None:
    """Jobs of an array share one search, by the script of docs/guide/jobs.md, though some are killed or cancelled.

    Those that are preempted or near their time limit leave, are requeued, and join again.
    """
    script = (ROOT / "docs/guide/jobs.md").read_text().partition("```bash\n")[2].partition("```")[0]
    for words, other in JOINED.items():
        assert words in script, words
        script = script.replace(words, other)
    (trial.folder / "job.sh").write_text(script)
    trial.type("cat job.sh")
    policy = {"PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe"}  # a node has 4 CPUs only on paper
    array = trial.type("sbatch --output=out-%a job.sh", **policy).split()[-1]
    status = "nnlo-opt status checkpoints/run | grep -e ^Done -e ^Job"
    outs = {task: trial.folder / f"out-{task}" for task in range(1, 7)}
    trial.until_trials(20)
    trial.type(status)
    leader = next(task for task, out in outs.items() if out.exists() and " starts on block " in out.read_text())
    trial.kill_mpirun(leader)
    trial.until_trials(60)
    trial.type(f"squeue; {status}")
    preempted = f"scontrol show job {array} | grep -c 'Restarts=[1-9]'"
    urgent = "sbatch --partition=high --nodelist=n1 --exclusive --output=high-%j --wrap='hostname; sleep 5'"
    trial.until_state(trial.type(urgent).split()[-1], "COMPLETED")
    trial.type(f"squeue; {preempted}; {status}")
    trial.until_trials(150)
    leaves, ends = trial.type("squeue --noheader --states=running --format=%i | tail -n 2").split()
    trial.type(f"scancel --batch --signal=TERM {leaves}; scancel {ends}")
    trial.until("no job is left", lambda: not trial.cluster.output("squeue", "--noheader"), 400.0)
    states = {f"{array}_{task}": trial.cluster.job(f"{array}_{task}", "JobState") for task in outs}
    codes = {job: trial.cluster.job(job, "ExitCode") for job in states}
    restarts = {job: trial.cluster.job(job, "Restarts") for job in states}
    shown = [f"        {job} {state} {codes[job]} {restarts[job]} restarts\n" for job, state in states.items()]
    trial.lines.append("".join(shown))
    trial.type(f"{status}; tail -qn 1 out-?")
    trial.type("sbatch --wait --array=7 --output=out-%a job.sh; cat out-7", **policy)
    expected = {f"{array}_{leader}": ("FAILED", "137:0"), leaves: ("FAILED", "75:0")}
    for job, state in states.items():
        if job == ends:
            assert state == "CANCELLED", state
        else:
            assert (state, codes[job]) == expected.get(job, ("COMPLETED", "0:0")), job
    assert trial.check(360) >= 2
    assert any(count != "0" for count in restarts.values()), "no job was requeued"


def drained(trial: Trial) -> None:
    """A node that is drained finishes what it runs, and gets no new job until it is resumed."""
    trial.plan(35)
    job = trial.submit()
    trial.until_trials(3)
    trial.type("scontrol update nodename=n4 state=drain reason=disk; sinfo")
    trial.until_state(job, "COMPLETED")
    assert trial.check(35) == 1
    trial.type("sinfo; rm -r checkpoints hosts")
    job = trial.submit()
    time.sleep(6)
    assert "PENDING" in trial.type(f"squeue --job={job} -o '%i %T %r'")
    trial.type("scontrol update nodename=n4 state=resume")
    trial.until_state(job, "COMPLETED")
    assert trial.check(35) == 1


def lost(trial: Trial) -> None:
    """A node that dies takes the job with it, which Slurm requeues; it completes when it has its nodes again."""
    trial.plan(70)
    job = trial.submit()
    trial.until_trials(3)
    trial.cluster.kill_node("n4")
    trial.lines.append("        (all processes of n4 are killed)\n")
    trial.until("Slurm has noticed", lambda: trial.cluster.states()["n4"].startswith("down"))
    trial.type(f"sinfo; squeue; scontrol show job {job} | grep -e JobState -e Requeue")
    trial.cluster.start_node("n4")
    trial.until_state(job, "RUNNING")
    trial.until_state(job, "COMPLETED")
    trial.show(job)
    trial.check(70)


def by_srun(trial: Trial) -> None:
    """With MPICH `--mpirun "srun --mpi=pmi2"` starts the ranks, and forwards the launcher's signal to them."""
    trial.type("mpirun --version | head -2; srun --mpi=list")
    trial.plan(35, edit='s/launch -n 8/launch --mpirun "srun --mpi=pmi2" -n 8/')
    job = trial.submit()
    trial.until_trials(3)
    trial.type(f"scancel --batch --signal=USR1 {job}")
    trial.until_state(job, "PENDING")
    trial.until_state(job, "COMPLETED")
    trial.show(job)
    trial.type("sort hosts | uniq -c")
    assert set(trial.hosts()) == set(NODES)
    assert trial.check(35) == 2


def scripts(trial: Trial) -> None:
    """Scripts for Horovod train on ranks of two nodes; a controller, whose workers share memory, refuses these."""
    job = "sbatch --wait --nodes=2 --ntasks=3 --output={name} --wrap='mpirun -n 3 bash -c \"hostname; python {words}\"'"
    names = ("lenet", "photographs")
    for path in ("tests/mpi/controller_scripts.py", *(f"examples/example_horovod_{name}.py" for name in names)):
        shutil.copy(ROOT / path, trial.folder)
    trial.type(job.format(name="controller", words="controller_scripts.py trains"))
    assert "must be on one node" in trial.type("grep -a -o -e 'All ranks must .*' controller")
    for name in names:
        trial.type(job.format(name=name, words=f"example_horovod_{name}.py"))
        text = trial.type(f"grep -a -x -e 'n[1-4]' -e 'accuracy on .*' {name}")
        assert {"n1", "n2"} <= set(text.split())
        assert float(text.rsplit(maxsplit=1)[-1]) > 0.9


def torch_groups(trial: Trial) -> None:
    """A block of ranks on two nodes trains a model by torch."""
    shutil.copy(ROOT / "examples/example_torch_ddp.py", trial.folder)
    driver = "OptimizationDriver --model example_torch_ddp.py --block-size 2 --num-iterations 6 --checkpoint run"
    trial.type(f"sbatch --wait --nodes=2 --ntasks=3 --output=out --wrap='mpirun -n 3 bash -c \"hostname; {driver}\"'")
    text = trial.type("grep -a -x -e 'n[1-4]' -e 'Search complete.*' out")
    assert {"n1", "n2"} <= set(text.split())
    assert "(6 complete)" in text


def worlds(trial: Trial) -> None:
    """Tasks of `srun` that do not see each other begin no run, unless that is meant; nothing else is refused."""
    driver = f"OptimizationDriver {SEARCH} --num-iterations 2 --checkpoint"
    for typed in (
        f"srun --mpi=none -n 4 {driver} no",
        f"sbatch --wait -n 4 -o out --wrap 'srun --mpi=none {driver} no'",
    ):
        said = trial.type(f"{typed}; [ ! -f out ] || cat out; ls checkpoints")
        assert said.count("each in a world of 1 rank") == 1
        assert "cannot access 'checkpoints'" in said
    said = trial.type("salloc -n 2 nnlo-opt doctor --timeout 40 --mpirun 'srun --mpi=none' | grep -a ranks:")
    assert "each alone in a world of one. `srun --mpi=list` lists the types of MPI" in said
    meant = f"bash -c '{driver} run-$SLURM_PROCID --seed $SLURM_PROCID'"
    trial.type(f"srun --mpi=none -n 2 {meant} | grep -a complete", NNLO_OPT_SEPARATE_RUNS="1")
    assert trial.check(2, "run-0") == trial.check(2, "run-1") == 1
    # A shell on a terminal, an allocation, and ranks of a node whose daemon srun has started.
    trial.type(f"script -qc \"srun -n 4 --pty bash -c '[ \\$SLURM_PROCID != 0 ] || {driver} typed; exit'\" /dev/null")
    trial.type(f"salloc -n 4 {driver} alone")
    for run in ("typed", "alone"):
        assert trial.check(2, run) == 1
    trial.type(f"sbatch --wait -N 3 -n 3 -o out-mpirun --wrap 'mpirun -n 3 {driver} nodes'; cat out-mpirun")
    assert trial.check(2, "nodes") == 1


#: name -> (statement, seconds of a trial, True if `--quick` has it)
STATEMENTS: dict[str, tuple[Callable[[Trial], None], float, bool]] = {
    "planned": (planned, 0.5, True),
    "one_node": (one_node, 0.5, True),
    "examined": (examined, 0.5, False),
    "preempted": (preempted, 2.0, False),
    "worlds": (worlds, 0.5, False),
    "array": (array, 0.5, True),
    "joined": (joined, 3.0, False),
    "out_of_time": (out_of_time, 3.0, False),
    "cancelled": (cancelled, 1.5, False),
    "drained": (drained, 2.0, False),
    "lost": (lost, 2.0, False),
    "scripts": (scripts, 0.5, False),
    "torch_groups": (torch_groups, 0.5, False),
    "by_srun": (by_srun, 1.5, False),
}


def tried(cluster: Cluster, name: str) -> tuple[bool, str]:
    """Return True if a statement holds, with the transcript of its commands."""
    statement, trial_s, _ = STATEMENTS[name]
    sentence = " ".join((statement.__doc__ or "").split())
    say(f"{name}: {sentence}")
    trial, holds = Trial(cluster, name, trial_s), True
    try:
        statement(trial)
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        holds = False
        trial.lines.append(f"FAILED: {error!r}\n")
        trial.type("squeue; sinfo; tail -n 30 out-*; scancel --user=root")
        say("\n".join(trial.lines))
    return holds, f"## {name}\n{sentence}\n\n" + "\n".join(trial.lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="for `make proofs`: a minute; no error if there is no Slurm",
    )
    parser.add_argument("--statements", nargs="+", choices=STATEMENTS, help="only these")
    parser.add_argument(
        "--late-signal", action="store_true", help="without SlurmctldParameters=preempt_send_user_signal"
    )
    parser.add_argument("--transcript", type=Path, help="text file for the commands with their output")
    arguments = parser.parse_args()
    if why := slurm_cluster.missing():
        say(f"LEFT OUT benchmarks/hosts/slurm.py: {why}")
        return 0 if arguments.quick else 1
    is_mpich = not has_ulfm(str(find_mpirun()))
    names = [name for name, (*_, quick) in STATEMENTS.items() if quick or not arguments.quick]
    # With MPICH only what is said of it; its mpirun knows no mapping policy, and no rank outlives a lost one.
    names = [name for name in arguments.statements or names if (name == "by_srun") == is_mpich]
    passed, seconds = dict[str, bool](), dict[str, int]()
    version = subprocess.run(
        [nodes.which("slurmd") or "", "-V"], capture_output=True, text=True, check=False
    ).stdout.strip()
    texts = [f"# {version}, four nodes on one machine\n"]
    folder = Path(tempfile.mkdtemp(prefix="nnlo-slurm-", dir=SHARED))
    folder.chmod(0o755)  # munge wants to reach its socket as any user
    try:
        with slurm_cluster.slurm(folder, late_signal=arguments.late_signal) as cluster:
            for name in names:
                begun_s = time.monotonic()
                passed[name], text = tried(cluster, name)
                seconds[name] = round(time.monotonic() - begun_s)
                texts.append(text)
                if arguments.transcript:
                    arguments.transcript.write_text("\n".join(texts))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"benchmark": "slurm", "passed": passed, "seconds": seconds}))
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
