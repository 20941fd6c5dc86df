"""What the operator decides, as pure functions: observed objects and `now` in, an `Outcome` with its reason out.

No I/O and no clock here; `dljob_operator` observes and executes.
"""
