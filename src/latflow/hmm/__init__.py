"""Topology, transition model, decision tree, H transducer."""
