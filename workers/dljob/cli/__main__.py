"""`python -m dljob.cli` is `dljob`."""

from __future__ import annotations

from dljob.cli.main import main

if __name__ == "__main__":
    main()
