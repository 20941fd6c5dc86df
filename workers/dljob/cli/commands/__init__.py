"""One module per command of `dljob`."""
