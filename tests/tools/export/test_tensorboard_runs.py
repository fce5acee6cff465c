import json
from collections import defaultdict

import pytest

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.tools.export.exporter import make_exporter
from tests.helpers.exported import REASON, SPACE, UNIX_S, story, take_in_parts
from tests.helpers.launcher import environment, python

pytestmark = pytest.mark.needs("tensorboard")

#: writes and reads event files where TensorFlow cannot be imported
PROGRAM = """
import json, sys
from pathlib import Path
sys.modules["tensorflow"] = None
from tests.helpers.exported import story
from nnlo_opt.tools.export.exporter import make_exporter
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
folder, events = Path(sys.argv[1]), story(int(sys.argv[2]))
make_exporter("tensorboard", SafePath(folder), "run").take(events, Ledger(events))

from google.protobuf.json_format import MessageToDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
found = {}
for path in folder.rglob("*tfevents*"):
    run = EventAccumulator(str(path.parent), {"scalars": 0, "tensors": 0}).Reload()
    hparams = run.summary_metadata
    found[str(path.parent.relative_to(folder))] = {
        "hparams": {
            tag: MessageToDict(HParamsPluginData.FromString(data.plugin_data.content))
            for tag, data in hparams.items() if data.plugin_data.plugin_name == "hparams"
        },
        "scalars": {
            tag: [(e.step, e.wall_time, float(e.tensor_proto.float_val[0] if e.tensor_proto.float_val else
                   __import__("struct").unpack("<f", e.tensor_proto.tensor_content)[0])) for e in run.Tensors(tag)]
            for tag, data in hparams.items() if data.plugin_data.plugin_name == "scalars"
        },
        "texts": {
            tag: run.Tensors(tag)[0].tensor_proto.string_val[0].decode()
            for tag, data in hparams.items() if data.plugin_data.plugin_name == "text"
        },
    }
assert "tensorflow.python" not in sys.modules
print(json.dumps(found))
"""


def read_back(folder, n_fold):
    return json.loads(python(PROGRAM, folder, n_fold, env=environment()).expect(0).out)


@pytest.mark.parametrize("n_fold", [1, 2])
def test_tensorboard_reads_what_the_journal_has_without_tensorflow(tmp_path, n_fold):
    found, events = read_back(tmp_path, n_fold), story(n_fold)
    ledger = Ledger(events)
    experiment = found.pop(".")["hparams"]["_hparams_/experiment"]["experiment"]
    assert [info["name"] for info in experiment["hparamInfos"]] == [*SPACE.names]
    assert experiment["hparamInfos"][0]["domainInterval"] == {"minValue": 1e-4, "maxValue": 0.1}
    assert experiment["hparamInfos"][6]["domainDiscrete"] == ["null", "0.5", "1"]
    assert experiment["metricInfos"][0]["name"]["tag"] == "figure_of_merit"
    curves = defaultdict(dict)
    for event in events:
        if isinstance(event, ev.EpochEnded):
            of = ledger.assignments[event.assignment]
            run = f"trial-{of.trial:04d}" + f"/fold-{of.fold}" * (n_fold > 1)
            curves[run].setdefault(event.epoch, [event.epoch, UNIX_S + event.time_s, event.metrics["val_loss"]])
    assert found.keys() == curves.keys()
    for run, epochs in curves.items():
        assert [*map(tuple, found[run]["scalars"]["epoch/val_loss"])] == [
            (step, time_s, pytest.approx(value, rel=1e-6)) for step, time_s, value in epochs.values()
        ]
        trial = ledger.trials[int(run[6:10])]
        start = found[run]["hparams"]["_hparams_/session_start_info"]["sessionStartInfo"]
        assert start["groupName"] == f"trial-{trial.number:04d}"
        texts = {"shape", "clip"}
        assert start["hparams"] == {
            name: json.dumps(value) if name in texts or value is None else value for name, value in trial.point.items()
        }
        end = found[run]["hparams"].get("_hparams_/session_end_info", {}).get("sessionEndInfo", {})
        status = {"complete": "STATUS_SUCCESS", "pruned": "STATUS_SUCCESS", "failed": "STATUS_FAILURE"}
        assert end.get("status") == status.get(trial.state)
        if trial.state == "complete":
            fold = int(run.partition("fold-")[2] or 0)
            [(step, _, value)] = found[run]["scalars"]["figure_of_merit"]
            assert (step, value) == (3, pytest.approx(trial.folds[fold].figure_of_merit, rel=1e-6))
        if trial.state == "failed":
            assert found[run]["texts"] == {"failed": REASON}


def test_a_mirror_writes_the_bytes_of_an_export_also_if_it_begins_again(tmp_path):
    events = story(2)

    def write(folder, events, n_at_once):
        take_in_parts(make_exporter("tensorboard", SafePath(tmp_path) / folder, "run"), events, n_at_once)
        return {path.relative_to(tmp_path / folder): path.read_bytes() for path in (tmp_path / folder).rglob("*tf*")}

    at_once = write("at once", events, len(events))
    write("mirror", events[:33], 5)
    torn = next((tmp_path / "mirror").rglob("trial-0000/fold-1/*"))
    torn.write_bytes(torn.read_bytes()[:-7])
    assert write("mirror", events, 8) == at_once
    lost = next(n for n, event in enumerate(events) if isinstance(event, ev.TrialSuggested) and event.trial == 2)
    assert write("mirror", events[:lost], lost) == write("less", events[:lost], lost)
