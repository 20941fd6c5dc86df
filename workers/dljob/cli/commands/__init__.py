"""One module per command of `dljob`; `observe` has those that show jobs and change nothing."""
