"""Simulated recordings: rooms, noises, other speakers, devices; draws are records."""
