"""Commands of `latflow`: one module a group, over the functions that stages call."""
