"""Lexicon, lang directory, n-gram models, grammar."""
