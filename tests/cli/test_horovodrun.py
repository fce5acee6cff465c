"""`horovodrun`: Horovod's options as options of mpirun."""

import shlex
import sys

import pytest

from nnlo_opt.ancestors.horovodrun import OPTIONS, build_report, mpirun_words, parse_hostfile, parse_hosts
from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.core.base.errors import ConfigurationError

OPEN_MPI, MPICH = "mpirun (Open MPI) 5.0.11\n", "HYDRA build details:\n    Version:         5.0.2\n"
HOSTFILE = "pi1 slots=2   # the first\n\npi2:1\n# pi3 slots=4\n"
LINE = "-np 3 --network-interface eth0 -p 2222 python3 cnn.py --np 7"


def started(line: str, hosts: dict[str, int], mpi: str) -> str:
    parser = Parser(OPTIONS)
    parser.add_rest("command", "")
    return shlex.join(mpirun_words(parser.values(shlex.split(line)), hosts, mpi, ["SECRET", "PATH"]))


def test_open_mpi_gets_hosts_interface_port_and_the_variables_of_other_hosts():
    assert started(LINE, parse_hostfile(HOSTFILE), OPEN_MPI) == (
        "mpirun -np 3 --allow-run-as-root --bind-to none --map-by slot --host pi1:2,pi2:1 "
        "--prtemca plm_ssh_args '-p 2222' --mca btl_tcp_if_include eth0 --prtemca oob_tcp_if_include eth0 -x PATH "
        "python3 cnn.py --np 7"
    )


def test_open_mpi_4_gets_them_by_the_options_that_it_knows():
    assert started(f"--verbose {LINE}", parse_hosts("pi1:2,pi2"), "mpirun.openmpi (OpenRTE) 4.1.4\n") == (
        "mpirun -np 3 --allow-run-as-root --bind-to none --map-by slot --host pi1:2,pi2:1 "
        "--mca plm_rsh_args '-p 2222' --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 -x PATH "
        "--display-map python3 cnn.py --np 7"
    )


def test_mpich_gets_hosts_interface_and_port_in_its_own_way():
    assert started(f"-i key --verbose --mpi-args=-prepend-rank {LINE}", parse_hosts("pi1:2,pi2"), MPICH) == (
        "env 'HYDRA_LAUNCHER_EXTRA_ARGS=-p 2222 -i key' mpirun -np 3 -hosts pi1:2,pi2:1 -iface eth0 -verbose "
        "-prepend-rank python3 cnn.py --np 7"
    )


def test_without_hosts_the_ranks_are_on_this_one():
    line = "mpirun -np 2 --allow-run-as-root --bind-to none --map-by slot --host localhost:2 python a.py"
    assert started("-np 2 python a.py", {}, OPEN_MPI) == line
    assert started("-np 2 python a.py", {}, MPICH) == "mpirun -np 2 python a.py"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-np 3 -H pi1:2 python a.py", "Received: `-np 3`, and 2 slots on pi1. Give a host more, such as `pi1:3`."),
        ("-np 3 -H pi1:two python a.py", "Received: 'pi1:two'."),
        ("-np 3 --hostfile none python a.py", "`--hostfile` must be a readable file."),
        ("-np 3 --hostfile f -H pi1:3 python a.py", "Give one of them."),
        ("-np 3 -H '' python a.py", "`-H` must name hosts with a number of slots"),
        ("-np 3 --hostfile {empty} python a.py", "`--hostfile` must name hosts with a number of slots"),
        (
            "-np 3 --hostfile /dev/null python a.py",
            "`--hostfile` must be a readable file. Received: not a regular file.",
        ),
        (f"-np 3 --hostfile {sys.executable} python a.py", "`--hostfile` must be a readable file."),
        ('-np 3 --mpi-args="it\'s" python a.py', "`--mpi-args` must be words in the syntax of a shell."),
        ("-np 3", "such as `horovodrun -np 3 python train.py`."),
        ("python a.py", "Received: -np None, command 'python a.py'."),
        ("-np three python a.py", "`-np` must be a whole number of ranks, at least 1. Received: three."),
        ("--gloo -np 2 python a.py", "Received: --gloo"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments, sentence, tmp_path, refused):
    (empty := tmp_path / "empty").touch()
    assert sentence in refused(*shlex.split(arguments.format(empty=empty)), program="horovodrun")


def test_dry_run_and_check_build_only_print(printed):
    assert printed("-np", "2", "--dry-run", "python", "a.py", program="horovodrun").endswith("python a.py\n")
    assert "    [X] tensorflow\n" in printed("--check-build", program="horovodrun")
    assert "[X] MPI: HYDRA build details: Version: 5.0.2, mpi4py" in build_report(MPICH)
    with pytest.raises(ConfigurationError):
        parse_hosts("pi1:0")
