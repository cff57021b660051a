"""OpenFst files as flat arrays; determinization and minimization."""
