import re
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import ConfigurationError, JournalError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.run_directory import RunRequest, check_files, choose_name, open_run, refuse_existing
from tests.helpers.refusals import check_refused

STARTED = ev.RunStarted(time_s=0.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={})
COMPLETED = ev.RunCompleted(time_s=1.0, reason="all done")


def request(root, name=None, **flags):
    return RunRequest(root=root, name=name, **flags)


def make_run(root, name, *events):
    run = open_run(request(root), name)
    run.journal.append(events)
    run.close()
    return run.path


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["a", "mnist-001", "My.Run_2+b", "0"])
def test_a_plain_file_name_is_a_name(tmp_path, name):
    assert choose_name(request(tmp_path, name), "mnist", "OptimizationDriver") == (name, "")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "-x", ".hidden", "a b", "a\n", "ä", "a\0", "a" * 256])
def test_a_name_that_is_no_plain_file_name_is_refused_with_rule_value_and_remedy(tmp_path, name):
    with pytest.raises(ConfigurationError, match=r"must be a plain file name.*Received: " + re.escape(repr(name))):
        request(tmp_path, name)


def test_a_name_that_no_folder_can_have_is_refused_in_a_sentence(tmp_path):
    asked = request(tmp_path, "a" * 300, is_folder=True)
    refuse_existing(asked)
    check_refused("File name too long", open_run, asked, asked.name)


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.synced"])
def test_a_file_of_a_run_that_is_no_regular_file_is_not_waited_for(tmp_path, irregular, name):
    path = make_run(tmp_path, "a", STARTED)
    (path / name).unlink()
    irregular(path / name)
    with suppress(ConfigurationError):
        open_run(request(tmp_path), "a").close()
    assert not (path / name).is_file()


def test_the_name_of_a_run_may_be_as_long_as_any_name(tmp_path):
    run = make_run(tmp_path, "a" * 255, STARTED)
    open_run(request(tmp_path), run.name).close()


def test_resuming_and_replacing_at_once_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`--opt-restore` .* `--overwrite` .* give one"):
        request(tmp_path, "a", restore=True, overwrite=True)


def test_runs_without_a_name_are_numbered_by_model(tmp_path):
    root = tmp_path / "checkpoints"
    assert choose_name(request(root), "mnist", "OptimizationDriver") == ("mnist-001", "")
    make_run(root, "mnist-001", STARTED)
    assert choose_name(request(root), "mnist", "OptimizationDriver") == ("mnist-002", "")
    make_run(root, "mnist-002", STARTED)
    make_run(root, "cifar10-007", STARTED)
    (root / "mnist-2").mkdir()
    (root / "mnist-x-009").mkdir()
    assert choose_name(request(root), "mnist", "OptimizationDriver") == ("mnist-003", "")
    assert choose_name(request(root), "cifar10", "OptimizationDriver") == ("cifar10-008", "")


def test_a_number_is_never_used_again_and_may_have_four_digits(tmp_path):
    make_run(tmp_path, "m-005", STARTED)
    (tmp_path / "m-999").mkdir()
    assert choose_name(request(tmp_path), "m", "OptimizationDriver") == ("m-1000", "")
    (tmp_path / "m-1000").mkdir()
    assert choose_name(request(tmp_path), "m", "OptimizationDriver") == ("m-1001", "")


@pytest.mark.parametrize("model", ["a b/c", "../x", "", "...", "über (1)", "m.*"])
def test_a_model_of_any_name_gives_a_directory_in_the_root(tmp_path, model):
    name, _ = choose_name(request(tmp_path), model, "OptimizationDriver")
    path = make_run(tmp_path, name, STARTED)
    assert path.parent == tmp_path
    assert name.endswith("-001")
    assert choose_name(request(tmp_path), model, "OptimizationDriver")[0].endswith("-002")


def test_restore_without_a_name_takes_the_newest_unfinished_run_and_says_so(tmp_path):
    make_run(tmp_path, "m-001", STARTED)
    make_run(tmp_path, "m-002", STARTED)
    make_run(tmp_path, "m-003", STARTED, COMPLETED)
    (tmp_path / "m-004").mkdir()
    make_run(tmp_path, "other-005", STARTED)
    name, remark = choose_name(request(tmp_path, restore=True), "m", "OptimizationDriver")
    assert name == "m-002"
    assert "m-002" in remark
    make_run(tmp_path, "m-003", STARTED)  # a finished run was gone on with, and cut short
    assert choose_name(request(tmp_path, restore=True), "m", "OptimizationDriver")[0] == "m-003"


def test_restore_does_not_pass_over_a_damaged_journal_in_silence(tmp_path):
    make_run(tmp_path, "m-001", STARTED)
    path = make_run(tmp_path, "m-002", STARTED)
    (path / "journal.jsonl").write_bytes(b"damaged\nbadly\n")
    name, _ = choose_name(request(tmp_path, restore=True), "m", "OptimizationDriver")
    assert name == "m-002"
    with pytest.raises(JournalError, match="m-002"):
        open_run(request(tmp_path, restore=True), name)


def test_restore_without_any_run_starts_one_and_says_so(tmp_path):
    make_run(tmp_path, "m-001", STARTED.replaced(settings={"command_line": ["TrainingDriver"]}), COMPLETED)
    name, remark = choose_name(request(tmp_path, restore=True), "m", "OptimizationDriver")
    assert (name, "starting a new run" in remark) == ("m-002", True)


def test_restore_of_what_is_complete_asks_for_more_trials_or_a_name(tmp_path):
    make_run(tmp_path, "m-001", STARTED, COMPLETED)
    failed = ev.TrialSuggested(time_s=1.0, trial=0, point={}), ev.TrialFailed(time_s=1.0, trial=0, reason="r")
    make_run(tmp_path, "m-002", STARTED, *failed, COMPLETED)
    asked = request(tmp_path, restore=True, n_asked=1)
    sentence = check_refused("m-002`, the newest run of m, complete with 1 trial.", choose_name, asked, "m", "D")
    assert all(way in sentence for way in ("`--num-iterations N`", "`--checkpoint NAME`", "leave `--opt-restore` out"))
    name, remark = choose_name(replace(asked, n_asked=2), "m", "D")
    assert (name, "for more trials" in remark) == ("m-002", True)
    training = request(tmp_path, restore=True, unit="epoch", restore_option="--restore")
    assert "with 0 epochs. Ask for more by `--epochs N`" in check_refused("m-002", choose_name, training, "m", "D")


def test_a_request_that_is_refused_leaves_no_run_but_a_users_files(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b/mine").touch()
        run = open_run(request(tmp_path, name), name)
        run.journal.append([STARTED] * (name == "c"))
        run.abandon()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.name != "run.lock")
    assert left == ["b", "b/mine", "c", "c/journal.jsonl", "c/journal.synced"]
    refuse_existing(request(tmp_path, "b"))


@pytest.mark.parametrize("given", [["--overw"], ["--overwrite", "--opt-restore"], ["--overlap"]])
def test_the_command_that_resumes_replaces_nothing(tmp_path, given):
    asked = request(tmp_path, "a", restore="--opt-restore" in given)
    kept = [word for word in given if word == "--overlap"]
    assert asked.resuming(["-n", "3", *given]) == ["-n", "3", *kept, "--opt-restore"]


# ---------------------------------------------------------------- an existing run


def test_an_existing_run_is_refused_with_the_three_ways_on(tmp_path):
    make_run(tmp_path, "a", STARTED)
    sentence = check_refused(str(tmp_path / "a"), refuse_existing, request(tmp_path, "a"))
    for way in ("`--opt-restore`", "`--checkpoint NAME`", "`--overwrite`"):
        assert way in sentence
    assert sentence.endswith(".")


def test_what_is_no_run_or_was_asked_for_is_not_refused(tmp_path):
    make_run(tmp_path, "a", STARTED)
    (tmp_path / "only-a-folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refuse_existing(request(tmp_path))
    refuse_existing(request(tmp_path, "b"))
    refuse_existing(request(tmp_path, "only-a-folder"))
    refuse_existing(request(tmp_path, "a", restore=True))
    refuse_existing(request(tmp_path, "a", overwrite=True))
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- open


def test_a_run_is_made_with_its_parents_and_found_again_with_its_ledger(tmp_path):
    root = tmp_path / "deep" / "place"
    run = open_run(request(root, "a"), "a")
    assert run.path == root / "a"
    assert run.ledger.sessions == []
    run.journal.append([STARTED, ev.TrialSuggested(time_s=1.0, trial=0, point={"n": 1})])
    run.close()
    run = open_run(request(root, "a", restore=True), "a", lock_timeout_s=0.0)
    assert [trial.point for trial in run.ledger.trials] == [{"n": 1}]
    assert len(run.ledger.sessions) == 1
    run.close()


def test_a_damaged_journal_is_refused_and_the_lock_is_let_go(tmp_path):
    path = make_run(tmp_path, "a", STARTED, COMPLETED)
    journal = path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[5:])
    for _ in range(2):
        with pytest.raises(JournalError, match="damaged"):
            open_run(request(tmp_path, "a"), "a", lock_timeout_s=0.0)
    with closing(open_run(request(tmp_path, "a", overwrite=True), "a", lock_timeout_s=0.0)) as run:
        run.begin_anew()
    assert journal.read_bytes() == b""


@pytest.mark.parametrize("name", ["a", "b/c"])
def test_a_root_that_is_a_file_is_refused_with_value_and_remedy(tmp_path, name):
    (tmp_path / "a").write_text("mine")
    (tmp_path / "b").write_text("mine")
    root = tmp_path if name == "a" else tmp_path / "b"
    with pytest.raises(ConfigurationError, match=r"must be writable\. Received: .*choose another place"):
        open_run(request(root), name.split("/")[-1])
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "mine"


def test_a_journal_that_is_a_directory_is_refused_and_the_lock_is_let_go(tmp_path):
    (tmp_path / "a" / "journal.jsonl").mkdir(parents=True)
    for _ in range(2):
        check_refused("must be writable", open_run, request(tmp_path, "a"), "a", lock_timeout_s=0.0)


def test_config_is_written_for_people_to_read(tmp_path):
    run = open_run(request(tmp_path, "a"), "a")
    run.write_config({"seed": 1, "path": tmp_path})
    run.close()
    text = (run.path / "config.json").read_text()
    assert '"seed": 1' in text
    assert str(tmp_path) in text


# ---------------------------------------------------------------- overwrite

OF_A_RUN = ("config.json", "results.csv", "summary.json", "best_model.keras", "trials/0000/fold0/w", "logs/rank-0.log")
OF_A_USER = ("notes.txt", "data/x.h5", "journal.jsonl.bak", "my_results.csv", "trials.txt", "best_model_of_mine.keras")


def fill(path):
    for name in (*OF_A_RUN, *OF_A_USER):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)


def files_of(path):
    aside = ("run.lock", "run.owner", "journal.synced")
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name not in aside}


def test_overwrite_removes_what_a_run_writes_and_nothing_else(tmp_path):
    path = make_run(tmp_path, "a", STARTED)
    fill(path)
    run = open_run(request(tmp_path, "a", overwrite=True), "a")
    assert run.ledger.sessions == []
    run.begin_anew()
    run.close()
    assert files_of(path) == {*OF_A_USER, "journal.jsonl"}
    assert not (path / "trials").exists()
    assert not (path / "logs").exists()


def test_overwrite_removes_nothing_from_a_directory_that_is_no_run(tmp_path):
    path = tmp_path / "project"
    fill(path)
    with closing(open_run(request(tmp_path, "project", overwrite=True), "project")) as run:
        run.begin_anew()
    assert files_of(path) == {*OF_A_RUN, *OF_A_USER, "journal.jsonl"}


def test_overwrite_that_was_cut_short_is_finished_by_the_next_one(tmp_path):
    path = make_run(tmp_path, "a", STARTED)
    fill(path)
    (path / "results.csv").unlink()
    (path / "results.csv").mkdir()  # cannot be removed as the file it should be
    with closing(open_run(request(tmp_path, "a", overwrite=True), "a")) as run:
        check_refused("must be writable", run.begin_anew)
    assert (path / "journal.jsonl").stat().st_size
    (path / "results.csv").rmdir()
    with closing(open_run(request(tmp_path, "a", overwrite=True), "a")) as run:
        run.begin_anew()
    assert files_of(path) == {*OF_A_USER, "journal.jsonl"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_refused_request_to_overwrite_leaves_the_folder_as_it_was(tmp_path, exists):
    path = tmp_path / "a"
    if exists:
        fill(make_run(tmp_path, "a", STARTED))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    open_run(request(tmp_path, "a", overwrite=True), "a").abandon()
    assert path.exists() == exists
    assert {file: file.read_bytes() for file in before} == before


def test_without_overwrite_nothing_is_removed(tmp_path):
    path = make_run(tmp_path, "a", STARTED)
    fill(path)
    open_run(request(tmp_path, "a", restore=True), "a").close()
    assert files_of(path) == {*OF_A_RUN, *OF_A_USER, "journal.jsonl"}


def test_a_run_stays_where_the_command_was_started(here, monkeypatch):
    (here / "elsewhere").mkdir()
    asked = request(Path("checkpoints"), restore=True)
    make_run(Path("checkpoints"), "m-001", STARTED)
    monkeypatch.chdir("elsewhere")
    name, said = choose_name(asked, "m", "OptimizationDriver")
    assert (name, said) == ("m-001", "Resuming `checkpoints/m-001`, the newest unfinished run of m.")
    with pytest.raises(ConfigurationError, match="The run `checkpoints/m-001` already exists"):
        refuse_existing(replace(asked, name=name, restore=False))
    with closing(open_run(asked, name)) as run:
        monkeypatch.chdir("/")
        run.journal.append([COMPLETED])
        assert (run.path, run.shown) == (here / "checkpoints/m-001", Path("checkpoints/m-001"))


# ---------------------------------------------------------------- lock

HOLDER = """
import sys
from pathlib import Path
from nnlo_opt.core.trials.run_directory import RunRequest, open_run

run = open_run(RunRequest(root=Path(sys.argv[1]), name=sys.argv[2]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(root, name):
    command = [sys.executable, "-c", HOLDER, str(root), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("flags", [{}, {"restore": True}, {"overwrite": True}])
def test_a_run_that_another_process_holds_is_refused_and_left_as_it_is(tmp_path, flags):
    path = make_run(tmp_path, "a", STARTED)
    fill(path)
    before = files_of(path), (path / "journal.jsonl").read_bytes()
    with held_by_another_process(tmp_path, "a"):
        with pytest.raises(ConfigurationError, match=r"another process holds .*choose another name by"):
            open_run(request(tmp_path, "a", **flags), "a", lock_timeout_s=0.0)
        open_run(request(tmp_path, "b"), "b", lock_timeout_s=0.0).close()
    assert (files_of(path), (path / "journal.jsonl").read_bytes()) == before


def test_the_lock_goes_with_the_process_that_held_it_however_it_died(tmp_path):
    with held_by_another_process(tmp_path, "a") as process:
        process.kill()
        process.wait()
        with closing(open_run(request(tmp_path, "a"), "a", lock_timeout_s=0.0)) as run:
            assert run.path == tmp_path / "a"


def test_a_process_that_is_about_to_die_is_waited_for(tmp_path):
    with held_by_another_process(tmp_path, "a") as process:
        process.stdin.close()
        with closing(open_run(request(tmp_path, "a"), "a", lock_timeout_s=60.0)) as run:
            assert run.path == tmp_path / "a"
        assert process.wait(10) == 0


@pytest.mark.parametrize("name", ["trials", "logs", "inbox", "run.lock", "run.owner", "journal.jsonl", "optuna.log"])
@pytest.mark.parametrize("kind", [{"restore": True}, {"overwrite": True}], ids=["resume", "overwrite"])
def test_a_run_with_a_link_in_place_of_a_file_is_not_opened(tmp_path, name, kind):
    path, home = make_run(tmp_path, "a", STARTED), tmp_path / "home"
    if (path / name).exists():
        (path / name).unlink()
    home.mkdir()
    (path / name).symlink_to(home)
    check_refused("must contain files and not links", open_run, request(tmp_path, "a", **kind), "a")
    assert (path / name).is_symlink()
    assert not [*home.iterdir()]


def test_a_file_that_is_gone_though_the_folder_lists_it_is_no_hindrance(tmp_path, monkeypatch):
    # Listings of network file systems are old, and other jobs replace files meanwhile.
    path, listed = make_run(tmp_path, "a", STARTED), SafePath.glob

    def old_listing(folder, pattern):
        return [*listed(folder, pattern), *([folder / "summary.json"] if pattern == "summary.json" else ())]

    monkeypatch.setattr(SafePath, "glob", old_listing)
    assert not (path / "summary.json").exists()
    check_files(path)


def test_a_run_directory_may_be_a_link(tmp_path):
    make_run(tmp_path, "disk", STARTED)
    (tmp_path / "a").symlink_to(tmp_path / "disk")
    with closing(open_run(request(tmp_path, "a", restore=True), "a")) as run:
        assert len(run.ledger.sessions) == 1
