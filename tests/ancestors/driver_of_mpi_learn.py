"""Script with the calls of mpi_learn's BuildModel.py and then of its MPIDriver.py of 2018: model and two lists."""

import sys

from models.Models import make_model
from mpi4py import MPI
from mpi_learn.mpi.manager import MPIManager, get_device
from mpi_learn.train.algo import Algo
from mpi_learn.train.data import H5Data
from mpi_learn.train.model import ModelFromJsonTF, ModelPytorch
from mpi_learn.train.trace import Trace, trace
from mpi_learn.utils import import_keras

name, *lists = sys.argv[1:]
is_torch = "torch" in name
Trace.enable()


@trace(category="TRAIN")
def build():
    model, weights = make_model(name), f"{name}_weights.h5"
    if is_torch:
        import torch

        torch.save(model.state_dict(), "weights.torch")
        torch.save(model, "arch.torch")
    else:
        model.save_weights(weights, overwrite=True)
        with open("arch.json", "w") as arch_file:
            arch_file.write(model.to_json())


build()
comm = MPI.COMM_WORLD.Dup()
device = get_device(comm, 1, gpu_limit=0, gpu_for_master=False)
if is_torch:
    model_builder = ModelPytorch(comm, filename="arch.torch", weights="weights.torch", gpus=0)
else:
    import_keras()
    import keras.backend as K

    K.set_session(K.tf.Session(config=K.tf.ConfigProto(allow_soft_placement=True)))
    model_builder = ModelFromJsonTF(comm, "arch.json", device_name=device, weights=f"{name}_weights.h5")
    print("using device", model_builder.device)
train_list, val_list = ([line.strip() for line in open(path)] for path in lists)  # noqa: SIM115
data = H5Data(batch_size=100, cache="", preloading=0, features_name="features", labels_name="labels")
data.set_file_names(train_list)
rule = {"validate_every": int(data.count_data() / 100), "sync_every": 1, "worker_optimizer": "sgd"}
algo = Algo("adam", loss="categorical_crossentropy", **rule)
files = {"train_list": train_list, "val_list": val_list}
settings = {"num_epochs": 2, "num_masters": 1, "num_processes": 1, "synchronous": False, "verbose": False}
settings |= {"monitor": False, "early_stopping": None, "target_metric": None}
manager = MPIManager(comm=comm, data=data, algo=algo, model_builder=model_builder, **files, **settings)
if comm.Get_rank() == 0:
    histories = manager.process.train()
    manager.free_comms()
    manager.process.record_details("history.json", meta={"args": {}})
    first, last = histories["0:-:-"]["loss"]
    print("learnt" if last < first else histories)
comm.barrier()
Trace.collect(clean=True)
