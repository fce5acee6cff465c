"""Script with the calls of NNLO's OptimizationDriver.py: two lists, and the words of a search."""

import sys

from mpi4py import MPI
from nnlo.mpi.manager import get_device, get_groups
from nnlo.optimize.coordinator import Coordinator
from nnlo.optimize.process_block import ProcessBlock
from nnlo.train.algo import Algo
from nnlo.train.data import H5Data
from nnlo.train.model import ModelPytorch
from nnlo.util.logger import initialize_logger
from skopt.space import Integer


class TorchBuilderFromFunction:
    def __init__(self, model_fn, parameters=None, gpus=0):
        self.model_fn, self.gpus = model_fn, gpus
        self.parameters = model_fn.parameter_range if parameters is None else parameters

    def builder(self, *params):
        try:
            args = dict(zip([p.name for p in self.parameters], params))  # noqa: B905
            return ModelPytorch(None, source=self.model_fn(**args), gpus=self.gpus)
        except ValueError:
            return None


def get_model(n):
    import torch

    if n == 5:
        raise ValueError("five")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, n), torch.nn.ReLU(), torch.nn.Linear(n, 10))


get_model.parameter_range = [Integer(4, 6, name="n")]
*lists, restores = sys.argv[1:]
initialize_logger(filename=None, file_level="warn", stream_level="warn")
comm_world = MPI.COMM_WORLD.Dup()
num_blocks, _ = divmod(comm_world.Get_size() - 1, 2)
block_num = 0 if comm_world.Get_rank() == 0 else (comm_world.Get_rank() - 1) // 2 + 1
device = get_device(comm_world, num_blocks, gpu_limit=0)
model_provider = TorchBuilderFromFunction(model_fn=get_model)
train_list, val_list = ([line.strip() for line in open(path)] for path in lists)  # noqa: SIM115
comm_block = comm_world.Split(block_num)
if block_num == 0:
    kept = {"checkpointing": "kept", "label": "train"}
    opt_coordinator = Coordinator(comm_world, num_blocks, model_provider.parameters, False, 3, **kept)
    if restores == "restore":
        opt_coordinator.load()
    opt_coordinator.target_fom = 0.01
    opt_coordinator.run(num_iterations=3)
    opt_coordinator.record_details()
else:
    assert get_groups(comm_block, 1, 1) == ([0], [[0, 1]], [[1]])
    data = H5Data(batch_size=100, cache="", preloading=0, features_name=("features", abs), labels_name="labels")
    data.set_file_names(train_list)
    rule = {"mode": "easgd", "sync_every": 1, "worker_optimizer": "sgd", "worker_optimizer_params": "{}"}
    rule |= {"elastic_force": 0.9 / (comm_block.Get_size() - 1), "elastic_lr": 1.0, "elastic_momentum": 0}
    algo = Algo(None, loss="categorical_crossentropy", validate_every=int(data.count_data() / 100), **rule)
    settings = {"folds": 1, "num_masters": 1, "num_process": 1, "verbose": False, "monitor": False}
    settings |= {"early_stopping": None, "target_metric": None, "label": "train"}
    settings |= {"restore": restores == "restore", "checkpoint": "kept", "checkpoint_interval": 5}
    model = (device, model_provider, 1)
    block = ProcessBlock(comm_world, comm_block, algo, data, *model, train_list, val_list, **settings)
    block.run()
