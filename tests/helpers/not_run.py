"""What pages show that no test of pages runs or compares: each with its reason."""

_MAKE = "the Makefile and .ci/run install, from nothing"
_HOME = "writes to the reader's home; tests/cli has the completion of three shells"
_DOCKER = "needs docker; benchmarks/hosts/containers.py runs every step of the images"
_HOSTS = "needs two hosts that ssh reaches; benchmarks/hosts/containers.py has two"
_CLUSTER = "needs 129 ranks; tests/mpi/test_launch.py starts five"
_AT_WORK = "needs a search at work; tests/mpi/test_steering.py has one"
_SERVER = "is a server, which runs until Ctrl-C, and no part of an extra"
_TERMINAL = "is on a terminal while a search runs; tests/reporting/test_watch.py compares it"
_PROGRAM = "tests/integrations runs the programs of this page, and looks whether they were paused"

#: page -> how a command, a program or what is shown begins -> why it is not run, or not compared
NOT_RUN: dict[str, dict[str, str]] = {
    "README.md": {"make": _MAKE, "python3 -m venv": _MAKE, ". .venv": _MAKE, "pip": _MAKE},
    "docs/guide/clusters.md": {"nnlo-opt launch -n 129": _CLUSTER, "mpirun --with-ft ulfm -n 129": _CLUSTER},
    "docs/guide/controller.md": {"python ": "measures for minutes"},
    "docs/guide/data.md": {"GetData cifar10 --source cifar-10": "needs an archive of 170 MB from the network"},
    "docs/guide/gan.md": {"mpirun -np 3 MPIGDriver --mode easgd --sync-every 5": "takes 12 minutes of two cores"},
    "docs/guide/horovod.md": {"horovodrun -np 3 --hostfile": _HOSTS},
    "docs/guide/hosts.md": {
        "The 8 ranks": "is said of four nodes; benchmarks/hosts/slurm.py has four",
        "mpirun --hostfile": _HOSTS,
        "nnlo-opt launch -n 5 --mpirun": _HOSTS,
        "ssh-keygen": _DOCKER,
        "cp containers": _DOCKER,
        "docker": _DOCKER,
        "for i in 1 2; do docker": _DOCKER,
        "sbatch": "needs Slurm; benchmarks/hosts/slurm.py submits an array",
    },
    "docs/guide/install.md": {
        "make": _MAKE,
        "python3 -m venv": _MAKE,
        ". .venv": _MAKE,
        "pip": _MAKE,
        "nnlo-opt completion": _HOME,
    },
    "docs/guide/integrations.md": {"import": _PROGRAM},
    "docs/guide/other-tools.md": {
        "optuna-dashboard": _SERVER,
        "MLFLOW_ALLOW_FILE_STORE=true mlflow ui": _SERVER,
        "wandb sync": "sends the run to the network",
    },
    "docs/guide/search.md": {
        "LinAlgError": "is said of a mistake of the reader's; tests/mpi/test_objective_search.py has it"
    },
    "docs/guide/steering.md": {"nnlo-opt stop": _AT_WORK},
    "docs/guide/watching.md": {"checkpoints/B": _TERMINAL, "[     12.6 s]": _TERMINAL},
}


def why_not_run(page: str, text: str) -> str | None:
    """Return why a command or a program of a page is not run, or what it shows not compared; None if it is."""
    return next((reason for begin, reason in NOT_RUN.get(page, {}).items() if text.startswith(begin)), None)
