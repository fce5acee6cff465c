"""HDF5 files; h5py is imported here, in no other place of `data`."""
