"""Files that hold many samples: zip archives, LMDB databases, arrays of NumPy's and HDF5."""
