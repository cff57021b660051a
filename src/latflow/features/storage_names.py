"""Names of the storages of features that lie within the manifest of cuts.

Public: `LILCOM`, `NUMPY`, `IN_MANIFEST`.
"""

LILCOM, NUMPY = "manifest_lilcom", "manifest_numpy"
IN_MANIFEST = (LILCOM, NUMPY)
