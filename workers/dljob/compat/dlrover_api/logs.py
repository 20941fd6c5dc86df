"""`dlrover.python.common.log`: its logger, under DLRover's name."""

from __future__ import annotations

import logging
import os
import sys

default_logger = logger = logging.getLogger("dlrover")
"""Logger that writes to stderr, which in a rank is its log; DLROVER_LOG_LEVEL is its level."""


def _set_up() -> None:
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d] %(message)s"))
    logger.addHandler(handler)
    level = os.environ.get("DLROVER_LOG_LEVEL", "INFO").upper()
    logger.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
    logger.propagate = False


_set_up()
