"""latflow: hybrid speech recognition recipes with the numbers of Kaldi."""

__version__ = "0.1.0"
