"""Decoding, training and denominator graphs."""
