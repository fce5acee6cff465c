"""Findings about machines that are not at hand: what follows from what was measured."""

import pytest

from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.tools.doctor import judgement
from nnlo_opt.tools.doctor.judgement import Finding

OPEN_MPI, MPICH = "mpirun (Open MPI) 5.0.11\n", "HYDRA build details:\n    Version:      5.0.2\n"
OF_OPEN_MPI, OF_MPICH = "Open MPI v5.0.11, package: Open MPI", "MPICH Version:      5.0.2\nMPICH Release date"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build"
#: of Debian, whose name for its launcher it repeats
OPEN_MPI_4, OF_OPEN_MPI_4 = "mpirun.openmpi (OpenRTE) 4.1.4\n", "Open MPI v4.1.4, package: Debian OpenMPI"
IDLE = "The 4 ranks use 1 of the 2 nodes that this job has. Open MPI's mpirun fills the first node."
PAIR = {"host": "a", "other": "b", "latency_us": 20.0, "mb_per_s": 9000.0}


def mpi(launcher="/x/mpirun", text=OPEN_MPI, library=OF_OPEN_MPI, beside=""):
    return judgement.mpi(launcher, text, library, "It says: no libmpi", beside)


def ranks(hosts="aabb", n_asked=4, pairs=(PAIR,), failure="", n_cores=2, idle="", *, says=OPEN_MPI, **of_rank):
    all_have = {"size": 4, "cores": [0, 1], "n_sharing": 2, "sees_folder": True} | of_rank
    found = [{"rank": i, "host": host} | all_have for i, host in enumerate(hosts)]
    job = judgement.ShortJob(kind=MpiKind.of(says), n_asked=n_asked, found=found, pairs=pairs, failure=failure)
    return judgement.ranks(job, n_cores, idle)


def cores(n_usable=8, n_physical=8, quota=None, n_ranks=5):
    return judgement.cores(n_usable, 8, n_physical, quota, n_ranks)


def disk(kind="ext4", failure="", owner="", **measured):
    known = {"step": "lock", "free_mb": 9e4, "mb_per_s": 500.0, "line_ms": 1.0, "excludes": True, "locks": True}
    return judgement.disk("/runs", kind, known | measured, failure, owner)


def framework(seconds=2.0, backend=""):
    return judgement.framework("torch", {"seconds": seconds, "version": "2.13", "backend": backend}, "")


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (mpi(), "fine", "`/x/mpirun` is Open MPI 5.0.11; the library of mpi4py is Open MPI 5.0.11."),
        (mpi(text=INTEL, library=OF_MPICH), "fine", "is Intel MPI 2021.9; the library of mpi4py is MPICH 5.0.2."),
        (mpi(text="slurm 22.05.8\n"), "fine", "is Slurm 22.05.8; the library of mpi4py is Open MPI"),
        (mpi(text=MPICH, beside="/y/mpi"), "broken", "N ranks start as N separate runs of one rank. Call `/y/mpi`"),
        (mpi(library=OF_MPICH), "broken", "N ranks start as N separate runs of one rank. Run `pip install"),
        (mpi(launcher=""), "broken", "No launcher is in PATH"),
        (mpi(text=""), "broken", "`/x/mpirun --version` gives no answer."),
        (mpi(library=""), "broken", "mpi4py has loaded no MPI library: It says: no libmpi"),
        (ranks(), "fine", "4 ranks have started: 2 on a, 2 on b."),
        (ranks(idle=IDLE), "broken", "of the 2 nodes that this job has. Open MPI's mpirun fills"),
        (ranks(sees_folder=False), "broken", "is not seen on a, b. Choose"),
        (ranks(size=1), "broken", "4 ranks have started, each alone in a world of one. See the line about MPI."),
        (ranks(size=1, remedy="Start them so."), "broken", "each alone in a world of one. Start them so."),
        (ranks("aab", failure="It says: no b"), "broken", "3 of 4 ranks have started. It says: no b Try"),
        (ranks("", failure="not enough slots available"), "broken", "0 of 4 ranks have started. not enough slots"),
        (ranks("", failure="attempt to run as root"), "broken", "OMPI_ALLOW_RUN_AS_ROOT=1"),
        (ranks("", failure="enough slots", says=OPEN_MPI), "broken", "set `PRTE_MCA_rmaps_default_mapping"),
        (
            ranks("", failure="enough slots", says=OPEN_MPI_4),
            "broken",
            "set `OMPI_MCA_rmaps_base_oversubscr",
        ),
        (
            mpi(text=OPEN_MPI_4, library=OF_OPEN_MPI_4),
            "fine",
            "is Open MPI 4.1.4; the library of mpi4py is Open MPI 4.1",
        ),
        (
            mpi(text=INTEL, beside="/y/mpi"),
            "broken",
            "is Intel MPI 2021.9; the library of mpi4py is Open MPI 5.0.11. Wi",
        ),
        (ranks(pairs=()), "broken", "No message has come back."),
        (ranks(pairs=[PAIR | {"latency_us": 5e3}]), "remark", "Messages a to b: 5e+03 us, 9,000 MB/s."),
        (ranks(n_sharing=1), "remark", "Ranks of one host share no memory"),
        (ranks(n_cores=8), "remark", "binds 2 ranks to 2 of 8 cores. `mpirun --bind-to none`"),
        (judgement.deaths(False, None, ""), "remark", "the death of a rank ends the job. `nnlo-opt launch`"),
        (judgement.deaths(True, 26.4, ""), "fine", "ULFM works: a rank continued 26 ms"),
        (judgement.deaths(True, None, "It says: Aborted"), "broken", "Aborted Give `nnlo-opt launch`"),
        (cores(), "fine", "8 of 8 cores for 5 ranks of this host."),
        (cores(n_physical=4, n_ranks=6), "remark", "8 of 8 cores, hyperthreads of 4 for 6 ranks"),
        (cores(quota=2.5), "remark", "the time of 2.5. Set `OMP_NUM_THREADS=1`"),
        (judgement.threads({}, 8, 5), "fine", "each rank that trains uses 2."),
        (judgement.threads({"OMP_NUM_THREADS": "2"}, 8, 5), "fine", "makes 8 threads on 8 cores."),
        (disk(kind="nfs4"), "fine", "`/runs` (nfs4), shared with other hosts: locks"),
        (disk(kind="overlay"), "remark", "a layer of the container"),
        (disk(line_ms=300.0), "remark", "300.0 ms for a line of the journal. This is slow"),
        (disk(free_mb=500.0), "remark", "has 500 MB free"),
        (disk(failure="It was ended after 60 s."), "broken", "fails at the step `lock`. It was ended after 60 s."),
        (framework(), "fine", "2.13, imported in 2.0 s."),
        (framework(backend="jax"), "fine", "2.13 on jax, imported"),
        (framework(seconds=40.0), "remark", "imported in 40.0 s. Each rank"),
        (judgement.framework("torch", None, ""), "fine", "Not installed; only models of torch need it."),
        (judgement.gpus((), {}, {"torch": 0}), "fine", "None was found: models"),
        (judgement.gpus((), {"CUDA_VISIBLE_DEVICES": ""}, {}), "fine", "None was found, by `CUDA_VISIBLE_DEVICES=`:"),
        (judgement.gpus(("0",), {}, {"torch": 1}), "fine", "1: 0."),
        (judgement.gpus(("0", "1"), {}, {"torch": 0, "jax": 2}), "remark", "2: 0, 1. Seen by none of torch."),
        (judgement.leftovers("/tmp", 0), "fine", "No killed mpirun"),
        (judgement.leftovers("/tmp", 7), "remark", "7 folders of killed mpiruns are in /tmp"),
    ],
)
def test_what_follows_from_what_was_measured(found, state, words):
    findings = [found] if isinstance(found, Finding) else [*found]
    worst = max(findings, key=lambda finding: ["fine", "remark", "broken"].index(finding.state))
    assert worst.state == state
    assert any(words in f"{finding.text} {finding.remedy}" for finding in findings if finding.state == state)
    assert all(bool(finding.remedy) == (finding.state != "fine") for finding in findings)
