"""Forced alignment: training graphs, Viterbi search, archives."""
