"""Tables and figures of the results report."""
