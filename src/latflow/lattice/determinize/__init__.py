"""Pruned determinization of lattices on words."""
