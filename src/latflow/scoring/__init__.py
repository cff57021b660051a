"""Word errors, their intervals, and the choice of scales on dev."""
