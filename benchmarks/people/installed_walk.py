"""What a person does with an installed wheel, in the working directory, by this Python's environment alone.

Examples, data, a search, SIGKILL of all its processes, its best model, resume, table, page, another pruner in a
simulation, doctor. Prints one line of JSON: versions, size of the environment, seconds of the start of commands.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}:/usr/bin:/bin",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
}
N_TRIALS, N_BEFORE_KILL, TIMEOUT_S = 6, 2, 300
SEARCH = (
    "mpirun -np 3 OptimizationDriver --model examples/example_mlp.py --search-space search_spaces/mlp.py "
    f"--block-size 1 --epochs 3 --num-iterations {N_TRIALS} --checkpoint walk"
)
RUN = Path("checkpoints/walk")
REPEATS = 5


def run(line: str, *, code: int = 0) -> str:
    """Return what a command prints, which must end with `code`."""
    words = line.split()
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=ENVIRONMENT)
    if done.returncode != code:
        raise SystemExit(f"$ {line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}\nended with {done.returncode}")
    return done.stdout


def n_complete() -> int:
    journal = RUN / "journal.jsonl"
    return journal.read_text().count('"TrialCompleted"') if journal.exists() else 0


def killed() -> None:
    """Start the search, and kill every process of it when some trials are complete."""
    import psutil

    with open("killed.log", "wb") as log:
        process = psutil.Popen(SEARCH.split(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT)
    deadline_s = time.monotonic() + TIMEOUT_S
    while n_complete() < N_BEFORE_KILL and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert process.poll() is None, Path("killed.log").read_text()[-3000:]
    for each in (*process.children(recursive=True), process):
        each.kill()
    process.wait()


def seconds(*words: str) -> float:
    """Median time of a command that is run several times."""
    times_s = []
    for _ in range(REPEATS):
        begun_s = time.monotonic()
        subprocess.run(words, capture_output=True, check=True, env=ENVIRONMENT)
        times_s.append(time.monotonic() - begun_s)
    return round(statistics.median(times_s), 3)


def main() -> None:
    run("nnlo-opt examples .")
    run("GetData mnist --source bundled")
    killed()
    n_before = n_complete()
    assert n_before < N_TRIALS
    assert "best_model" in run(f"nnlo-opt best-model {RUN}")
    said = run(f"{SEARCH} --opt-restore")
    assert f"{N_TRIALS} complete" in said, said[-2000:]
    assert n_complete() == N_TRIALS
    assert "complete" in run(f"nnlo-opt show {RUN}")
    assert (RUN / "best_model.keras").exists()
    page = RUN / "report.html"
    page.unlink()
    run(f"nnlo-opt report {RUN}")
    assert page.stat().st_size > 100_000
    run(f"nnlo-opt simulate --run {RUN} --blocks 1 2 --pruner asha")
    broken = [line for line in run("nnlo-opt doctor").splitlines() if line.startswith("broken")]
    assert not broken, broken
    environment = BIN.parent
    size_mb = sum(file.lstat().st_size for file in environment.rglob("*") if file.is_file()) / 1e6
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "complete_before_kill": n_before,
                "environment_mb": round(size_mb),
                "import_s": seconds(sys.executable, "-c", "import nnlo_opt"),
                "help_s": seconds("nnlo-opt", "--help"),
                **{name: version(name) for name in ("tensorflow", "keras", "numpy", "mpi4py", "pandas", "scipy")},
            }
        )
    )


if __name__ == "__main__":
    main()
