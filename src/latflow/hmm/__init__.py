"""Room of latflow: see docs/architecture.md."""
