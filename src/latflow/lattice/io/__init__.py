"""Lattices in Kaldi's archives: binary, text and random access."""
