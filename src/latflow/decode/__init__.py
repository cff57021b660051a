"""Lattice decoder, scorers of GMMs and networks, recognizer, rescoring."""
