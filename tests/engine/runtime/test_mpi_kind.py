"""Kinds of MPI, by what launchers and libraries were seen to say of themselves, with the remedies of each."""

import pytest

from nnlo_opt.engine.runtime.mpi_kind import MpiKind

OPEN_MPI_5, OPEN_MPI_4 = "mpirun (Open MPI) 5.0.11\n", "mpirun.openmpi (OpenRTE) 4.1.4\n"
HYDRA, INTEL = (
    "HYDRA build details:\n    Version:      4.0.2\n",
    "Intel(R) MPI Library for Linux* OS, Version 2021.18.1",
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OPEN_MPI_5, "Open MPI 5.0.11"),
        (OPEN_MPI_4, "Open MPI 4.1.4"),
        ("mpirun (Open MPI) 4.1.4", "Open MPI 4.1.4"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost", "Open MPI 5.0.11"),
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI 4.1.4"),
        (HYDRA, "MPICH 4.0.2"),
        ("MPICH Version:      5.0.2\nMPICH Release date", "MPICH 5.0.2"),
        (INTEL, "Intel MPI 2021.18.1"),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "Intel MPI 2021.18.1"),
        ("slurm-wlm 22.05.8", "Slurm 22.05.8"),
        ("aprun 7", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_kind_is_known_by_what_it_says(text, words):
    assert str(MpiKind.of(text)) == words


@pytest.mark.parametrize(
    ("text", "outlives"), [(OPEN_MPI_5, True), (OPEN_MPI_4, False), (HYDRA, False), (INTEL, False), ("", False)]
)
def test_only_ranks_of_open_mpi_5_outlive_others(text, outlives):
    assert MpiKind.of(text).has_ulfm == outlives


def test_what_may_be_wrong_if_no_rank_starts_is_said_of_open_mpi_by_its_version():
    said = MpiKind.of(OPEN_MPI_4).start_remedy
    assert said.startswith("By default Open MPI 4.1.4 starts no ranks as root, and no more ranks than slots")
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" in said
    assert "OMPI_MCA_rmaps_base_oversubscribe=1" in said
    assert "PRTE_MCA" not in said
    assert not MpiKind.of(HYDRA).start_remedy


def test_each_version_of_open_mpi_has_its_own_variable_for_more_ranks_than_slots():
    of_5, of_4 = "PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe=1"
    remedies = {text: MpiKind.of(text).slots_remedy for text in (OPEN_MPI_5, OPEN_MPI_4, "")}
    assert {text: (of_5 in remedy, of_4 in remedy) for text, remedy in remedies.items()} == {
        OPEN_MPI_5: (True, False),
        OPEN_MPI_4: (False, True),
        "": (True, True),
    }
