"""Names of the storages of features: those within the manifest of cuts, and all."""

LILCOM, NUMPY = "manifest_lilcom", "manifest_numpy"
IN_MANIFEST = (LILCOM, NUMPY)
# Lhotse has others, and reads them with programs that run commands (`kaldiio`).
STORAGES = (
    *("numpy_hdf5", "numpy_files", "lilcom_chunky", "lilcom_files", "lilcom_hdf5"),
    *("chunked_lilcom_hdf5", *IN_MANIFEST),
)
