"""Training criteria: what is minimized, its gradient, and what is logged of it."""
