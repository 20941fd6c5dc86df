"""Forwards `python -m dljob.runtime.leave`: pods that run have this path as their preStop hook (`node.prestop`)."""

import os
import sys

from dljob.runtime.node.prestop import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
