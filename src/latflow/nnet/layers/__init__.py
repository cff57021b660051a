"""The layer classes that a network description can name."""
