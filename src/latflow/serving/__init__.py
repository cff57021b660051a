"""Finished models at work: packages, transcription, streaming sessions, servers."""
