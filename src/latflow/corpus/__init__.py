"""Corpora: Lhotse manifests, Kaldi data directories, synthetic speech."""
