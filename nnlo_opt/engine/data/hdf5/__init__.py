"""HDF5 files: the only part of `data` that imports h5py."""
