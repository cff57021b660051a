"""Sequence training: lattices and alignments made on the fly from the network."""
