"""Training criteria: what is minimised, its gradient, and what is logged of it."""
