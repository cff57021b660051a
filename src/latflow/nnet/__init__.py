"""Acoustic networks: a description in YAML becomes a torch module and a folder."""
