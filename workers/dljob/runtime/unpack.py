"""Forwards `python -m dljob.runtime.unpack`: operators write this path into pods (`job.init_container`)."""

import sys

from dljob.runtime.job.init_container import main

if __name__ == "__main__":
    sys.exit(main())
