"""`dljob dlrover-run`: run an unchanged dlrover-run script as a job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from dljob.api.torchrun_line import count_own_words
from dljob.cli.commands.torchrun import run_line
from dljob.compat import dlrover_run as meaning
from dljob.errors import ExitCode


def dlrover_run(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Run an unchanged dlrover-run script as a job, with DLRover's import paths served by dljob.

    Args:
        words: arguments of dlrover-run, torchrun and dljob, the script, its arguments; `--help` lists them.
    """
    try:
        line = meaning.read_line(words, os.environ)
    except SystemExit:
        # argparse exits after it has printed the help; its errors are UsageErrors.
        return ExitCode.OK
    return run_line(line, meaning.job)


def own_words(words: Sequence[str]) -> int:
    """Return how many words belong to dljob and dlrover-run rather than to the script."""
    return count_own_words(words, meaning.LAUNCHER)
