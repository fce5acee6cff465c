"""Script of NNLO that trains its GAN, as its MPIGDriver does: lists of training and of validation files."""

import sys

from mpi4py import MPI
from nnlo.mpi.manager import MPIManager, get_device
from nnlo.train.algo import Algo
from nnlo.train.data import H5Data
from nnlo.train.GanModel import GANModelBuilder

comm = MPI.COMM_WORLD.Dup()
train_list, val_list = ([line.strip() for line in open(name)] for name in sys.argv[1:3])  # noqa: SIM115
builder = GANModelBuilder(comm, device_name=get_device(comm), tf=True, weights=None)
print("on", builder.device)
builder.set_params(latent_size=8)
data = H5Data(batch_size=16, features_name="X", labels_name="y")
algo = Algo("rmsprop", loss="dummy", validate_every=2, mode="easgd", sync_every=1, worker_optimizer="rmsprop")
files = {"train_list": train_list, "val_list": val_list}
settings = {"num_epochs": 1, "num_masters": 1, "synchronous": False, "callbacks": []}
manager = MPIManager(comm, data=data, algo=algo, model_builder=builder, **files, **settings)
histories = manager.train()
manager.free_comms()
if comm.Get_rank() == 0:
    print(*sorted(histories["history"]["0:-:-"]))
