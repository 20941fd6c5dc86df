"""`dljob accelerate`: run an unchanged `accelerate launch` script as a job."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from dljob.cli.commands.torchrun import run_line
from dljob.compat import accelerate_run as meaning
from dljob.errors import ExitCode

own_words = meaning.count_own_words


def accelerate(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run an unchanged `accelerate launch` script as a job, with its configuration file.

    Args:
        words: arguments of `accelerate launch` and dljob, the script, its arguments; `--help` lists them.
    """
    try:
        line = meaning.read_line(words, os.environ)
    except SystemExit:
        # argparse exits after it has printed the help; its errors are UsageErrors.
        return ExitCode.OK
    return run_line(line, meaning.job)
