"""What a job obeys: orders about folds whose point and numbers can be, and no other message, whoever has written it."""

import json

import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm import run_messages
from nnlo_opt.core.comm.objective_messages import CallObjective
from nnlo_opt.core.jobs.accepted import checked_order, checked_report
from nnlo_opt.core.jobs.lines import Ordered, Reported
from nnlo_opt.core.space.parameters import Categorical, Real
from nnlo_opt.core.space.space import Space
from tests.helpers.steps import fold_finished

SPACE = Space([Real(0, 1, name="x"), Categorical([[1, 2], "a"], name="layers")])
POINT = {"x": 0.5, "layers": [1, 2]}
RUN = msg.RunFold(
    assignment=7, trial=3, fold=1, attempt=1, point=POINT, pause_epochs=[2], term=2, before=[(0, 3), (1, 5)]
)
#: last rung of `--pruner asha` if nobody has said how many epochs there are
LAST_RUNG = RUN.replaced(pause_epochs=[1, 3, 3**34])
ORDERS = [RUN, LAST_RUNG, *(kind(assignment=7) for kind in (msg.GoOn, msg.PauseFold, msg.PreemptFold, msg.StopFold))]


def checked(message, rank=0):
    return checked_order(Ordered(rank=rank, message=message), 2, space=SPACE, n_fold=2, n_ranks=3)


@pytest.mark.parametrize("order", [*ORDERS, msg.FoldRecorded(assignment=0)], ids=lambda order: type(order).__name__)
def test_orders_of_a_search_are_accepted(order):
    assert checked(order.to_json(), rank=2) == order


@pytest.mark.parametrize(
    "message",
    [
        run_messages.OpenRun(directory="/tmp/elsewhere"),
        run_messages.Shutdown(exit_code=0),
        run_messages.Inspect(report=True),
        run_messages.ExportModel(point={}, weights_path="/etc/passwd", path="/tmp/model.keras"),
        CallObjective(assignment=7, point=RUN.point, saved="../../elsewhere"),
        msg.Fence(assignment=7, checkpoint="/tmp/elsewhere"),
        msg.StartFold(assignment=7, trial=3, fold=1, point=RUN.point, worker=1, n_workers=1),
        fold_finished(7, 0.0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_no_other_message_is_an_order(message):
    with pytest.raises(ProtocolError, match="is not an order"):
        checked(message.to_json())


@pytest.mark.parametrize(
    "changes",
    [
        {"assignment": -1},
        {"assignment": 2**54},
        {"trial": -1},
        {"trial": 2**54},
        {"fold": -1},
        {"fold": 2},
        {"attempt": 0},
        {"first": 2},
        {"first": -2},
        {"pause_epochs": [3, 0]},
        {"term": 0},
        {"term": 3},
        {"before": [(1, -1)]},
        {"before": [(-1, 3)]},
        {"before": [(3, 3)]},
        {"term": -1},
        {"before": [(2**54, 0)]},
        {"point": {}},
        {"point": {"x": 2.0, "layers": "a"}},
        {"point": {"x": 0.5, "layers": "b"}},
        {"point": {"x": "0.5", "layers": "a"}},
        {"point": {"x": 0.5, "layers": "a", "y": 1}},
    ],
    ids=str,
)
def test_numbers_are_in_range_and_the_point_is_in_the_space(changes):
    with pytest.raises(ProtocolError, match=r"must be from|not in the search space"):
        checked(RUN.replaced(**changes).to_json())


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (RUN.to_json(), 3),
        ("", 0),
        ("{}", 0),
        (json.dumps({**json.loads(RUN.to_json()), "path": "/tmp"}), 0),
        (json.dumps({**json.loads(RUN.to_json()), "trial": "../../elsewhere"}), 0),
        (RUN.to_json().replace("0.5", "NaN"), 0),
    ],
    ids=["rank of another job", "nothing", "no kind", "unknown field", "text as a number", "NaN"],
)
def test_a_line_that_is_no_message_for_this_job_is_refused(text, rank):
    with pytest.raises(ProtocolError):
        checked(text, rank)


def test_only_what_masters_say_is_a_report():
    finished = fold_finished(7, 0.5)
    assert checked_report(Reported(rank=0, message=finished.to_json())) == finished
    for message in (RUN, run_messages.Shutdown(exit_code=0), run_messages.ModelExported(path="/tmp/elsewhere")):
        with pytest.raises(ProtocolError, match="is not a report"):
            checked_report(Reported(rank=0, message=message.to_json()))
