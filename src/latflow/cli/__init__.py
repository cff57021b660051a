"""Commands of `latflow`: one module a group, over the functions that stages call."""

from latflow.interruption import report_in_a_line

report_in_a_line()  # before what is imported next
