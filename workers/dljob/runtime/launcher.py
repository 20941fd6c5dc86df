"""Forwards `python -m dljob.runtime.launcher`: operators submit this path (`job.launcher`)."""

import sys

from dljob.runtime.job.launcher import main

if __name__ == "__main__":
    sys.exit(main())
