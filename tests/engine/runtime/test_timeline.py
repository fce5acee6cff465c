import json
import math
import threading
from collections import defaultdict

import numpy as np
import pytest

from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.timeline import NO_TIMELINE
from nnlo_opt.core.comm.topology import Topology, plan_single_block, rank_label
from nnlo_opt.engine.runtime.timeline import RankTimeline, clear_parts, events_per_rank, merge_timelines, part_path
from tests.helpers.manual_clock import ManualClock


class SkewedClock(ManualClock):
    """A manual clock whose wall time has an origin of its own."""

    def __init__(self, start_s=0.0, wall_s=1.7e9):
        super().__init__(start_s)
        self.wall_s = wall_s

    def unix_s(self):
        return self.wall_s + self.now_s


def read(path):
    """The trace in a file, which any viewer must understand."""
    trace = json.loads(path.read_bytes(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    check_trace(trace)
    return trace


def trace_of(timeline):
    trace = json.loads(timeline.to_text())
    check_trace(trace)
    return trace


def spans_of(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def check_trace(trace):
    """What chrome://tracing and Perfetto ask for: complete events that nest on each track, and metadata."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events, tracks = trace["traceEvents"], defaultdict(list)
    for event in events:
        assert {"name", "cat", "ph", "pid", "tid", "ts"} <= set(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in ("M", "X")
    for span in spans_of(trace):
        assert span["ts"] >= 0
        assert span["dur"] >= 0
        tracks[span["pid"], span["tid"]].append((round(span["ts"] * 1e3), round(span["dur"] * 1e3)))
    assert {pid for pid, _ in tracks} <= {event["pid"] for event in events if event["name"] == "process_name"}
    assert set(tracks) <= {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for spans in tracks.values():
        open_ends = []
        for start, length in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or start + length <= open_ends[-1], "spans of a track must nest"
            open_ends.append(start + length)


def timeline_of(rank=3, clock=None, **settings):
    return RankTimeline(rank, f"rank {rank} (worker 1 of block 1)", clock or ManualClock(), **settings)


# ---------------------------------------------------------------- one rank


def test_spans_become_complete_events_of_their_rank(tmp_path):
    clock = ManualClock(100.0)
    timeline = timeline_of(clock=clock)
    clock.advance(1.0)
    with timeline.span("epoch", epoch=1):
        clock.advance(0.25)
        with timeline.span("send", category="message", n_bytes=4000):
            clock.advance(0.5)
    timeline.open(tmp_path)
    timeline.close()
    trace = read(part_path(tmp_path, 3))
    assert spans_of(trace) == [
        {"name": "send", "cat": "message", "ph": "X", "pid": 3, "tid": 0, "ts": 1.25e6, "dur": 5e5}
        | {"args": {"n_bytes": 4000}},
        {"name": "epoch", "cat": "compute", "ph": "X", "pid": 3, "tid": 0, "ts": 1e6, "dur": 7.5e5}
        | {"args": {"epoch": 1}},
    ]
    metadata = {event["name"]: event["args"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert metadata == {
        "process_name": {"name": "rank 3 (worker 1 of block 1)"},
        "process_sort_index": {"sort_index": 3},
        "thread_name": {"name": "main"},
    }


def test_a_span_that_ends_by_an_exception_is_kept_and_says_so():
    timeline = timeline_of()
    with pytest.raises(KeyError), timeline.span("gradient", batch=2):
        raise KeyError("x")
    (span,) = spans_of(trace_of(timeline))
    assert span["args"] == {"batch": 2, "error": "KeyError"}


def test_what_is_no_with_block_has_a_track_of_its_own():
    clock = ManualClock()
    timeline = timeline_of(clock=clock)
    with timeline.span("first"):
        clock.advance(1)
        since = timeline.now()
        clock.advance(1)
    with timeline.span("second"):
        clock.advance(1)
        timeline.add("answer", since, track="answers", worker=2)
        clock.advance(1)
    trace = trace_of(timeline)
    (answer,) = [span for span in spans_of(trace) if span["name"] == "answer"]
    assert (answer["ts"], answer["dur"], answer["tid"], answer["args"]) == (1e6, 2e6, 1, {"worker": 2})


def run_in_thread(name, function):
    thread = threading.Thread(target=function, name=name)
    thread.start()
    thread.join()


def test_each_thread_has_its_track_and_threads_that_follow_one_another_share_theirs():
    timeline = timeline_of(clock=SystemClock())

    def work():
        with timeline.span("read"):
            pass

    for _ in range(3):
        run_in_thread("prefetch", work)
    run_in_thread("other", work)
    work()
    trace = trace_of(timeline)
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["main", "prefetch", "other"]
    assert [span["tid"] for span in spans_of(trace)] == [1, 1, 1, 2, 0]


def test_threads_of_one_name_at_the_same_time_do_not_share_a_track():
    timeline = timeline_of(clock=SystemClock())
    inside = threading.Barrier(2)

    def work():
        with timeline.span("read"):
            inside.wait(10)
        inside.wait(10)

    threads = [threading.Thread(target=work, name="prefetch") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {span["tid"] for span in spans_of(trace_of(timeline))} == {1, 2}


def test_spans_nest_with_a_real_clock_too():
    timeline = timeline_of(clock=SystemClock())
    for _ in range(200):
        with timeline.span("a"), timeline.span("b"), timeline.span("c"):
            pass
    assert len(spans_of(trace_of(timeline))) == 600


def test_arguments_that_json_has_no_form_for_are_shown_as_text(tmp_path):
    timeline = timeline_of()
    with timeline.span("a", loss=math.nan, n=np.int64(3), where=tmp_path):
        pass
    timeline.open(tmp_path)
    timeline.close()
    trace = read(part_path(tmp_path, 3))
    assert spans_of(trace)[0]["args"] == {"loss": "nan", "n": "3", "where": str(tmp_path)}


def test_memory_is_bounded_and_what_is_long_is_kept_from_the_beginning_to_the_end():
    clock = ManualClock()
    timeline = timeline_of(clock=clock, max_events=100)
    for epoch in range(1, 41):
        with timeline.span("epoch", epoch=epoch):
            for _ in range(50):
                with timeline.span("gradient"):
                    clock.advance(0.01)
    trace = trace_of(timeline)
    spans = spans_of(trace)
    assert len(spans) <= 100
    assert [span["args"]["epoch"] for span in spans if span["name"] == "epoch"] == list(range(1, 41))
    facts = trace["otherData"]
    assert facts["n_events"] == len(spans)
    assert facts["n_dropped"] + len(spans) == 40 * 51


def test_all_ranks_together_keep_what_can_still_be_looked_at():
    assert [events_per_rank(n) for n in (1, 5, 50, 250, 10_000)] == [50_000, 50_000, 10_000, 2_000, 2_000]


# ---------------------------------------------------------------- off


def test_no_timeline_does_nothing(tmp_path):
    assert not NO_TIMELINE.keeps
    with NO_TIMELINE.span("epoch", epoch=1), NO_TIMELINE.span("gradient", category="x"):
        NO_TIMELINE.add("answer", NO_TIMELINE.now(), track="answers")
    NO_TIMELINE.open(tmp_path)
    NO_TIMELINE.flush()
    NO_TIMELINE.close()
    assert NO_TIMELINE.directory is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), NO_TIMELINE.span("a"):
        raise KeyError("passes through")


# ---------------------------------------------------------------- the part on disk


def test_a_part_is_a_whole_trace_after_every_write_and_not_written_at_every_epoch(tmp_path):
    clock = ManualClock()
    timeline = timeline_of(clock=clock)
    written = []
    for epoch in range(1, 31):
        with timeline.span("epoch", epoch=epoch):
            clock.advance(1.0)
        timeline.flush()  # the run directory is not known in the first epochs
        if epoch == 5:
            timeline.open(tmp_path)
        path = part_path(tmp_path, 3)
        if path.exists():
            written.append(len(spans_of(read(path))))
    assert written == [*[6] * 10, *[16] * 10, *[26] * 5]
    timeline.close()
    assert len(spans_of(read(path))) == 30
    assert [file.name for file in path.parent.iterdir()] == ["rank-00003.json"]


def test_a_part_that_cannot_be_written_costs_a_line_in_the_log_and_no_run(tmp_path, caplog):
    (tmp_path / "timeline").write_text("a file is in the way")
    timeline = timeline_of()
    timeline.open(tmp_path)
    timeline.flush()
    timeline.close()
    assert "no timeline of this rank" in caplog.text
    assert merge_timelines(tmp_path) is None


# ---------------------------------------------------------------- all ranks


def write_parts(directory, n_ranks=3):
    for rank in range(n_ranks):
        # Each rank begins 1.5 s after the one before, on a machine that was started at another time.
        clock = SkewedClock(start_s=1000.0 * rank, wall_s=1.7e9 - 1000.0 * rank + 1.5 * rank)
        timeline = RankTimeline(rank, f"rank {rank}", clock)
        with timeline.span("epoch", epoch=1):
            clock.advance(2.0)
        timeline.open(directory)
        timeline.close()


def test_the_parts_are_put_together_on_one_clock(tmp_path):
    write_parts(tmp_path)
    path = merge_timelines(tmp_path)
    assert path == tmp_path / "timeline.json"
    trace = read(path)
    times = [(span["pid"], span["ts"], span["dur"]) for span in spans_of(trace)]
    assert times == [(0, 0.0, 2e6), (1, 1.5e6, 2e6), (2, 3e6, 2e6)]
    assert trace["otherData"]["zero_unix_s"] == 1.7e9
    assert [facts["rank"] for facts in trace["otherData"]["ranks"]] == [0, 1, 2]
    sort = [event["args"]["sort_index"] for event in trace["traceEvents"] if event["name"] == "process_sort_index"]
    assert sort == [0, 1, 2]


def test_ranks_of_jobs_that_joined_later_have_their_own_numbers_and_the_time_of_the_run(tmp_path):
    for job in (1, 2):
        clock = SkewedClock(start_s=500.0 * job, wall_s=1.7e9 - 500.0 * job + 60.0 * job)
        timeline = RankTimeline(1, "rank 1", clock)
        with timeline.span("epoch"):
            clock.advance(2.0)
        timeline.open(tmp_path, 3 * job - 3, f"job {job} on node-{job}")
        timeline.close()
    trace = read(merge_timelines(tmp_path))
    assert [(span["pid"], span["ts"]) for span in spans_of(trace)] == [(1, 0.0), (4, 60e6)]
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert names == [f"job {job} on node-{job}: rank 1" for job in (1, 2)]


def test_the_whole_of_many_jobs_has_the_longest_events_of_each_rank(tmp_path, monkeypatch):
    monkeypatch.setattr("nnlo_opt.engine.runtime.timeline.events_per_rank", lambda n_ranks: 12 // n_ranks)
    clock = SkewedClock()
    for rank in range(3):
        timeline = RankTimeline(rank, f"rank {rank}", clock)
        for length_s in (3.0, 1.0, 5.0, 1.0, 4.0, 1.0, 1.0) if rank else (1.0, 2.0):
            with timeline.span("step"):
                clock.advance(length_s)
        timeline.open(tmp_path)
        timeline.close()
    lengths = defaultdict(list)
    for span in spans_of(read(merge_timelines(tmp_path))):
        lengths[span["pid"]].append(span["dur"] / 1e6)
    assert lengths == {0: [1.0, 2.0], 1: [3.0, 1.0, 5.0, 4.0], 2: [3.0, 1.0, 5.0, 4.0]}


def test_parts_that_are_missing_empty_or_damaged_are_left_out(tmp_path, caplog):
    write_parts(tmp_path, n_ranks=5)
    part_path(tmp_path, 1).unlink()
    part_path(tmp_path, 2).write_bytes(b"")
    part_path(tmp_path, 3).write_bytes(b'{"otherData": {}, "traceEvents": [\n]}\n')
    torn = part_path(tmp_path, 4)
    torn.write_bytes(torn.read_bytes()[:-20])
    trace = read(merge_timelines(tmp_path))
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 4}
    assert "rank-00002.json" in caplog.text
    assert "rank-00003.json" in caplog.text
    assert "ends in the middle" in caplog.text


def test_without_parts_there_is_no_timeline(tmp_path):
    assert merge_timelines(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_parts_of_an_earlier_start_can_be_removed(tmp_path):
    clear_parts(tmp_path)
    write_parts(tmp_path)
    clear_parts(tmp_path)
    assert merge_timelines(tmp_path) is None


# ---------------------------------------------------------------- names


def test_ranks_are_named_by_their_roles():
    topology = Topology.plan(6, 3)
    labels = [rank_label(rank, topology.team_of_rank(rank), coordinates=rank == 0) for rank in range(6)]
    assert "; ".join(labels) == (
        "rank 0 (coordinator); rank 1 (master of block 1); rank 2 (worker 1 of block 1); rank 3 (worker 2 of block 1); "
        "rank 4 (master of block 2); rank 5 (worker 1 of block 2)"
    )
    team = plan_single_block(3).teams[0]
    assert rank_label(0, team, coordinates=True) == "rank 0 (coordinator, master of block 1)"
    assert rank_label(2, team, coordinates=False) == "rank 2 (worker 2 of block 1)"
    ring = plan_single_block(3, ranks_per_worker=2).teams[0]
    assert rank_label(2, ring, coordinates=False) == "rank 2 (worker 1.2 of block 1)"
    tree = plan_single_block(9, n_masters=3, ranks_per_worker=2).teams[0]
    assert "; ".join(rank_label(rank, tree, coordinates=False) for rank in range(9)) == (
        "rank 0 (top master of block 1); rank 1 (sub-master 1 of block 1); rank 2 (worker 1.1 of block 1); "
        "rank 3 (worker 1.2 of block 1); rank 4 (sub-master 2 of block 1); rank 5 (worker 2.1 of block 1); "
        "rank 6 (worker 2.2 of block 1); rank 7 (worker 3.1 of block 1); rank 8 (worker 3.2 of block 1)"
    )
    alone = Topology.plan(1, 2).teams[0]
    assert rank_label(0, alone, coordinates=True) == "rank 0 (coordinator, master, worker 1 of block 1)"
