from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.engine.runtime import devices
from nnlo_opt.engine.runtime.devices import (
    Drivers,
    GpuRequest,
    Gpus,
    NodeShare,
    Resources,
    are_own,
    core_share,
    deal,
    find_gpus,
    gpu_ids,
    place,
    share_node,
)
from tests.helpers.launcher import python

ALL = frozenset(range(16))


def drivers_of(folder, *, n_nvidia=0, n_amd=0, mig=False, listing=""):
    """The places where drivers tell what there is, as on a node with these GPUs."""
    for i in range(n_nvidia):
        (folder / "nvidia" / "gpus" / f"0000:0{i}:00.0").mkdir(parents=True)
    if mig:
        (folder / "nvidia" / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    for i in range(n_amd + 1):  # the first is the processor
        (folder / "kfd" / str(i)).mkdir(parents=True)
        (folder / "kfd" / str(i) / "gpu_id").write_text(f"{i * 51 if n_amd else 0}\n")
    return Drivers(nvidia=folder / "nvidia", amd=folder / "kfd", list_nvidia=lambda: listing)


# ---------------------------------------------------------------- which GPUs there are


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0,1,2", ("0", "1", "2")),
        ("3", ("3",)),
        (" 2 , 0 ", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,2,-1,1", ("0", "2")),
        ("1,1,2", ("1", "2")),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-1f", ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1f")),
        ("MIG-GPU-8932f937/1/2,MIG-41b36014", ("MIG-GPU-8932f937/1/2", "MIG-41b36014")),
    ],
)
def test_what_the_batch_system_left_visible_is_all_there_is(tmp_path, visible, names):
    drivers = drivers_of(tmp_path, n_nvidia=8)
    assert find_gpus({"CUDA_VISIBLE_DEVICES": visible}, drivers) == Gpus(names, "CUDA_VISIBLE_DEVICES")


def test_without_a_word_of_the_batch_system_all_gpus_of_the_node_are_there(tmp_path):
    assert find_gpus({}, drivers_of(tmp_path / "a", n_nvidia=4)).names == ("0", "1", "2", "3")
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)\n"
    assert find_gpus({}, drivers_of(tmp_path / "b", listing=listing)).names == ("0", "1")
    assert find_gpus({}, drivers_of(tmp_path / "c")).names == ()


def test_slices_of_gpus_are_used_by_their_names(tmp_path):
    listing = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)\n"
        "  MIG 3g.20gb     Device  0: (UUID: MIG-11-22)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-33-44)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)\n"
    )
    drivers = drivers_of(tmp_path / "a", n_nvidia=2, mig=True, listing=listing)
    assert find_gpus({}, drivers).names == ("MIG-11-22", "MIG-33-44", "1")
    silent = drivers_of(tmp_path / "b", n_nvidia=2, mig=True)
    assert find_gpus({}, silent).names == ("0", "1")


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ("0", "1", "2", "3")),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, ("2", "3")),
        ({"ROCR_VISIBLE_DEVICES": "2,GPU-DEAD"}, ("0", "1")),
        ({"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2"}, ("2",)),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0,1"}, ("0", "1")),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
    ],
)
def test_for_amd_the_last_filter_counts(tmp_path, environ, names):
    assert find_gpus(environ, drivers_of(tmp_path, n_amd=4)) == Gpus(names, "HIP_VISIBLE_DEVICES")


def test_a_batch_system_may_set_the_variables_of_every_vendor(tmp_path):
    environ = {"CUDA_VISIBLE_DEVICES": "4,5", "ROCR_VISIBLE_DEVICES": "4,5", "GPU_DEVICE_ORDINAL": "4,5"}
    assert find_gpus(environ, drivers_of(tmp_path, n_nvidia=8)) == Gpus(("4", "5"), "CUDA_VISIBLE_DEVICES")


# ---------------------------------------------------------------- who has which


def test_gpus_go_round_among_the_trainers_of_a_node():
    assert [place(i, ["0", "1"], None) for i in range(5)] == ["0", "1", "0", "1", "0"]
    assert [place(i, ["GPU-a", "GPU-b", "GPU-c"], 2) for i in range(3)] == ["GPU-a", "GPU-b", "GPU-a"]
    assert [place(i, ["7"], 4) for i in range(2)] == ["7", "7"]
    assert place(0, ["0", "1"], 0) == place(3, [], None) == "-1"


@given(st.integers(1, 40), st.integers(1, 8), st.none() | st.integers(1, 8))
def test_no_gpu_has_two_ranks_more_than_another(n_trainers, n_gpus, max_gpus):
    visible = [f"GPU-{i}" for i in range(n_gpus)]
    used = [place(rank, visible, max_gpus) for rank in range(n_trainers)]
    usable = visible[:max_gpus]
    counts = [used.count(name) for name in usable]
    assert sum(counts) == n_trainers
    assert max(counts) - min(counts) <= 1


def shares(environ, *, ranks=range(5), trainers=(2, 3, 4), masters=(1,), uuids=None, **request):
    """The share of each rank of a node without bound ranks.

    `environ`: of all ranks, or a function of the rank; `uuids`: rank -> UUIDs of the GPUs that the driver shows it.
    """
    uuids = uuids or {}
    own = {rank: dict(of(rank)) for rank in ranks} if callable(of := environ) else dict.fromkeys(ranks, environ)
    ids = {rank: gpu_ids(devices.find_gpus(own[rank]), own[rank], partial(uuids.get, rank, ())) for rank in ranks}
    packed = {rank: Resources.of(ALL, ids[rank]).pack() for rank in ranks}
    assert {len(of_rank) for of_rank in packed.values()} == {1024}, "messages of one length"
    resources = {rank: Resources.unpack(of_rank) for rank, of_rank in packed.items()}
    return {r: share_node(r, resources, trainers, masters, GpuRequest(**request), own[r]) for r in ranks}


def test_trainers_have_gpus_and_masters_and_the_coordinator_see_none():
    found = shares({"CUDA_VISIBLE_DEVICES": "4,5"})
    assert {rank: share.gpu for rank, share in found.items()} == {0: "-1", 1: "-1", 2: "4", 3: "5", 4: "4"}
    assert [share.n_sharing for share in found.values()] == [0, 0, 2, 1, 2]


def test_a_master_has_a_gpu_where_that_is_asked_for():
    found = shares({"CUDA_VISIBLE_DEVICES": "4,5"}, master_gpu=True)
    assert {rank: share.gpu for rank, share in found.items()} == {0: "-1", 1: "4", 2: "5", 3: "4", 4: "5"}


def test_at_most_so_many_gpus_are_used_as_was_said():
    found = shares({"CUDA_VISIBLE_DEVICES": "4,5"}, max_gpus=1)
    assert [share.gpu for share in found.values()] == ["-1", "-1", "4", "4", "4"]
    assert {share.gpu for share in shares({"CUDA_VISIBLE_DEVICES": "4,5"}, max_gpus=0).values()} == {"-1"}


def one_each(rank):
    return {"CUDA_VISIBLE_DEVICES": str(rank % 4)}


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        (one_each, None),
        (lambda rank: {"CUDA_VISIBLE_DEVICES": f"GPU-{rank}"}, None),
        (lambda rank: {"CUDA_VISIBLE_DEVICES": f"MIG-{rank}"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {rank: [f"GPU-{rank}"] for rank in range(5)}),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, {rank: [f"GPU-{rank}", f"GPU-{rank}-b"] for rank in range(5)}),
        (lambda rank: {"ROCR_VISIBLE_DEVICES": str(rank)}, None),
        (lambda rank: {"ROCR_VISIBLE_DEVICES": str(rank), "HIP_VISIBLE_DEVICES": "0"}, None),
        (lambda rank: {"HIP_VISIBLE_DEVICES": str(rank)}, None),
    ],
    ids=["index", "UUID", "slice", "cgroups", "two in cgroups", "ROCR", "ROCR and HIP", "HIP"],
)
def test_a_rank_keeps_the_gpu_that_is_its_own(environ, uuids):
    found = shares(environ, uuids=uuids)
    for rank in (2, 3, 4):
        given = environ(rank) if callable(environ) else environ
        taken = dict(given)
        found[rank].take(taken)
        assert found[rank].gpu == find_gpus(given).names[0]
        assert found[rank].n_sharing == 1
        assert "TF_FORCE_GPU_ALLOW_GROWTH" not in taken
        assert "share" not in found[rank].text()
        assert taken.get("ROCR_VISIBLE_DEVICES") == given.get("ROCR_VISIBLE_DEVICES")


def test_ranks_that_see_the_same_gpus_of_a_task_share_these():
    found = shares({"CUDA_VISIBLE_DEVICES": "0"}, uuids={2: ["GPU-a"], 3: ["GPU-a"], 4: ["GPU-b"]})
    assert [(found[rank].gpu, found[rank].n_sharing) for rank in (2, 3, 4)] == [("0", 2), ("0", 2), ("0", 1)]
    found = shares(lambda rank: {"CUDA_VISIBLE_DEVICES": {2: "0", 3: "0,1"}.get(rank, "1,2")})
    assert [(found[rank].gpu, found[rank].n_sharing) for rank in (2, 3, 4)] == [("0", 1), ("1", 1), ("2", 1)]


def test_one_gpu_is_shared_though_the_driver_shows_it_to_each_rank():
    found = shares({"CUDA_VISIBLE_DEVICES": "0"}, uuids=dict.fromkeys(range(5), ("GPU-a",)))
    assert [(found[rank].gpu, found[rank].n_sharing) for rank in (2, 3, 4)] == [("0", 3)] * 3


def test_the_largest_number_of_gpus_holds_for_the_node_if_ranks_have_their_own():
    found = shares(one_each, max_gpus=2)
    assert [found[rank].gpu for rank in (2, 3, 4)] == ["2", "3", "-1"]


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=4, unique=True), max_size=8), st.none() | st.integers(1, 8)
)
def test_every_rank_gets_a_gpu_that_it_sees_and_no_more_are_used_than_asked_for(seen, max_gpus):
    dealt = deal(seen, max_gpus)
    assert len(dealt) == len(seen)
    assert all(gpu == "-1" or gpu in of_rank for gpu, of_rank in zip(dealt, seen, strict=True))
    assert len({*dealt} - {"-1"}) <= (max_gpus or 6)
    if max_gpus is None:
        assert [gpu == "-1" for gpu in dealt] == [not of_rank for of_rank in seen]


def test_ranks_that_call_different_gpus_by_one_name_have_their_own():
    assert not are_own([["0"], ["1"]], [["a"], ["b"]])
    assert not are_own([["0"], ["0"], []], [["a"], ["a"], []])
    assert are_own([["0"], ["0"]], [["a"], ["b"]])
    assert are_own([["0", "1"], ["0", "1"]], [["a", "b"], ["a", "c"]])


def test_each_node_places_its_own_trainers():
    first = shares({"CUDA_VISIBLE_DEVICES": "0,1"}, ranks=(0, 1, 2), trainers=(1, 2, 3, 4, 5), masters=())
    second = shares({"CUDA_VISIBLE_DEVICES": "0,1"}, ranks=(3, 4, 5), trainers=(1, 2, 3, 4, 5), masters=())
    assert [first[rank].gpu for rank in (1, 2)] == ["0", "1"]
    assert [second[rank].gpu for rank in (3, 4, 5)] == ["0", "1", "0"]


def test_where_no_gpu_is_found_the_environment_is_left_alone_unless_gpus_are_hidden(monkeypatch):
    monkeypatch.setattr(devices, "find_gpus", lambda environ: Gpus(()))
    assert shares({})[2].gpu is None
    assert shares({"CUDA_VISIBLE_DEVICES": "NoDevFiles"})[2].gpu == "-1"


# ---------------------------------------------------------------- threads


def test_trainers_share_all_cores_and_waiting_ranks_take_none():
    assert [share.n_threads for share in shares({}, max_gpus=0).values()] == [3, 3, 5, 5, 5]


def test_the_users_number_of_threads_is_everybodys():
    found = shares({"OMP_NUM_THREADS": "4"}, max_gpus=0)
    assert {share.n_threads for share in found.values()} == {4}
    assert [share.n_cores for share in found.values()] == [3, 3, 5, 5, 5]


def test_a_core_is_spare_where_a_rank_has_more_than_one():
    assert share_of(n_cores=2, n_threads=2).has_spare_core
    assert not share_of(n_cores=1, n_threads=2).has_spare_core


@pytest.mark.parametrize(
    ("mine", "trainers", "n_threads"),
    [
        (ALL, [ALL] * 4, 4),
        (ALL, [ALL] * 5, 3),
        (ALL, [ALL], 16),
        (ALL, [ALL] * 40, 1),
        # bound to a core each
        ({1}, [{1}, {2}, {3}], 1),
        # bound to a socket each, of which there are two
        (range(8), [range(8), range(8, 16), range(8)], 4),
        (range(8, 16), [range(8), range(8, 16), range(8)], 8),
        # one bound, one free
        (ALL, [ALL, range(8)], 12),
    ],
)
def test_a_core_counts_in_equal_parts_for_all_trainers_that_may_run_on_it(mine, trainers, n_threads):
    assert core_share(frozenset(mine), [frozenset(other) for other in trainers]) == n_threads


@given(st.lists(st.frozensets(st.integers(0, 15), min_size=1), min_size=1, max_size=20))
def test_a_node_has_no_more_threads_than_cores_but_one_for_each_rank(trainers):
    threads = [core_share(mine, trainers) for mine in trainers]
    assert sum(n - 1 for n in threads) <= len(frozenset().union(*trainers))
    assert sum(n for n in threads if n > 1) <= len(frozenset().union(*trainers))


@given(st.frozensets(st.integers(0, 4095)))
def test_cores_travel_in_messages_of_one_length(numbers):
    packed = devices.pack_cores(numbers)
    assert len(packed) == 512
    assert devices.unpack_cores(packed) == numbers


def test_the_cores_of_this_process_are_some():
    assert devices.cores()
    assert devices.unpack_cores(devices.pack_cores(devices.cores())) == devices.cores()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, (2, 4)),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}, (1, 3)),
        ({"PALS_LOCAL_RANKID": "5", "PALS_LOCAL_SIZE": "8"}, (5, 8)),
        ({"SLURM_LOCALID": "3", "SLURM_NTASKS_PER_NODE": "4"}, (3, 4)),
        ({"SLURM_NTASKS_PER_NODE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "6"}, (0, 6)),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "many"}, (0, 1)),
    ],
)
def test_the_launcher_says_where_on_the_node_a_rank_is(environ, expected):
    assert devices.node_place(environ) == expected


def test_before_mpi_every_rank_has_the_same_part_and_after_it_what_its_role_needs(monkeypatch):
    monkeypatch.setattr(devices, "cores", lambda: ALL)
    environ = {"OMPI_COMM_WORLD_LOCAL_SIZE": "5", "MKL_NUM_THREADS": "7"}
    devices.cap_threads(environ)
    assert (environ["OMP_NUM_THREADS"], environ["OPENBLAS_NUM_THREADS"], environ["MKL_NUM_THREADS"]) == ("3", "3", "7")
    shares(environ, max_gpus=0)[2].take(environ)
    assert (environ["OMP_NUM_THREADS"], environ["OPENBLAS_NUM_THREADS"], environ["MKL_NUM_THREADS"]) == ("5", "5", "7")


@pytest.mark.parametrize("given_text", ["4", "4,2"])
def test_what_the_user_has_said_stays(given_text):
    environ = {"OMP_NUM_THREADS": given_text, "OMPI_COMM_WORLD_LOCAL_SIZE": "5"}
    devices.cap_threads(environ)
    shares(environ, max_gpus=0)[2].take(environ)
    assert environ["OMP_NUM_THREADS"] == given_text
    assert environ["OPENBLAS_NUM_THREADS"] == "4"


# ---------------------------------------------------------------- into the environment


def share_of(**changes):
    settings = {"n_threads": 2, "n_cores": 2, "gpu": "5", "variable": "CUDA_VISIBLE_DEVICES", "n_sharing": 1}
    return NodeShare(**{**settings, **changes})


def test_a_rank_sees_its_gpu_and_leaves_room_to_those_it_shares_it_with():
    environ = {"CUDA_VISIBLE_DEVICES": "4,5"}
    share_of().take(environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "5"
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in environ
    environ = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
    share_of(n_sharing=2).take(environ)
    assert environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true", "the user's word"


def test_a_rank_without_a_gpu_sees_none_of_any_vendor():
    environ = {"CUDA_VISIBLE_DEVICES": "4,5"}
    share_of(gpu="-1", n_sharing=0).take(environ)
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    assert [environ[name] for name in names] == ["-1"] * 3
    environ = {}
    share_of(gpu=None, n_sharing=0).take(environ)
    assert not [name for name in environ if name.endswith("VISIBLE_DEVICES")]


def test_a_share_is_told_in_words():
    assert share_of().text() == "2 threads, GPU 5"
    assert share_of(n_threads=1, n_sharing=3).text() == "1 thread, GPU 5, which 3 ranks share"
    assert share_of(gpu=None, n_sharing=0).text() == "2 threads, no GPU"


def test_nothing_that_counts_threads_is_imported_here():
    program = "import sys, nnlo_opt.engine.runtime.devices; print('numpy' in sys.modules)"
    assert python(program).expect(0).out == "False\n"
