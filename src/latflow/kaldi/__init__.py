"""Kaldi's streams and archives."""
