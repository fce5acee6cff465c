"""Options set against the ranks of a start, without any rank."""

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.options.checks import check_momentum, check_shares, check_teams
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.space import Integer, Ordinal, Space


@pytest.mark.parametrize(
    ("n_ranks", "arguments", "sentence"),
    [
        (5, ["--n-masters", "2"], ""),
        (5, ["--n-processes", "2"], ""),
        (6, ["--n-masters", "2", "--n-processes", "2"], ""),
        (4, ["--n-masters", "3"], "`--n-masters` must leave every sub-master a worker"),
        (1, ["--n-masters", "2"], "`--n-masters` must leave every sub-master a worker"),
        (5, ["--n-masters", "2", "--n-processes", "2"], "`--n-processes` must divide the ranks behind the 2 masters"),
        (3, ["--n-masters", "2", "--mode", "allreduce"], "`--n-masters` must be 1 with `--mode allreduce`"),
        (4, ["--n-processes", "2"], "`--n-processes` must divide the ranks behind the master"),
        (1, ["--n-processes", "2"], "`--n-processes` must divide the ranks behind the master"),
        (5, ["--n-processes", "2", "--mode", "allreduce"], "`--n-processes` must be 1 with `--mode allreduce`"),
    ],
)
def test_groups_of_ranks_that_cannot_be_are_told(n_ranks, arguments, sentence):
    options = driver_options("TrainingDriver", ["--model", "m.py", *arguments])
    refused = pytest.raises(ConfigurationError, match="^" + re.escape(sentence)) if sentence else nullcontext()
    with refused:
        options.training.rule.check_groups(options.n_masters, options.n_processes)
        topology = plan_single_block(n_ranks, **options.of_teams)
        check_teams(topology, options.n_masters, options.n_processes)


@pytest.mark.parametrize(
    ("arguments", "space", "says"),
    [
        (["--batch", "2100"], None, ""),
        (["--batch", "2101"], None, "`--batch` of 2,101 is more than the 2,100 training samples of a worker"),
        (["--batch", "1401", "--mode", "allreduce"], None, "`--batch` of 1,401 is more than the 1,400"),
        (["--batch", "9999"], Space([Integer(1, 2000, name="train.batch")]), ""),
        ([], Space([Ordinal([64, 4096], name="train.batch")]), "`train.batch` of 4,096"),
    ],
)
def test_a_batch_larger_than_the_samples_of_a_worker_is_remarked_on(arguments, space, says):
    data = DataFiles(files=(), n_train=4200, n_validation=0)
    found = Findings(model="m", kind="model", source="", sha256="", space=space, data=data, n_train_smallest=4200)
    options = driver_options("TrainingDriver", ["--model", "m.py", *arguments])
    every_rank = options.training.mode == "allreduce"
    remarks = check_shares(options, plan_single_block(3, every_rank_trains=every_rank), found)
    assert len(remarks) == bool(says)
    assert says in "".join(remarks)


@pytest.mark.parametrize(
    ("n_ranks", "says"), [(10, ""), (11, "10 workers act as a momentum of 0.90, no less than the 0.9 asked")]
)
def test_workers_that_give_more_momentum_than_was_asked_for_are_remarked_on(n_ranks, says):
    found = Findings(model="m", kind="model", source="", sha256="")
    options = driver_options(
        "TrainingDriver", ["--model", "m.py", "--optimizer", "sgd", "--optimizer-params", "{'momentum': 0.9}"]
    )
    assert not check_momentum(options, plan_single_block(n_ranks), found)
    corrected = replace(options, training=replace(options.training, momentum_correction=True))
    remarks = check_momentum(corrected, plan_single_block(n_ranks), found)
    assert len(remarks) == bool(says)
    assert says in "".join(remarks)
    with pytest.raises(ConfigurationError, match="trains itself"):
        check_momentum(corrected, plan_single_block(n_ranks), replace(found, trains_itself=True))
