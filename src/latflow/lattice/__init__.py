"""Lattices: path sums, determinization, n-best, rescoring, word alignment."""
