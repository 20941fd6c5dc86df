"""Redirection of DLRover's paths in this process, and in all that inherit its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping

from dljob.compat.dlrover_api.finder import ROOT, install
from dljob.compat.redirect import SITE

VARIABLE = "DLJOB_COMPAT"
"""Names what `site/sitecustomize.py` redirects in each Python that inherits it."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make a Python process redirect DLRover's paths before its first import."""
    path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != SITE]
    return {VARIABLE: ROOT, "PYTHONPATH": os.pathsep.join([SITE, *path])}


def install_everywhere(environ: MutableMapping[str, str]) -> None:
    """Redirect here and in the processes that inherit the environment; the first of them says so.

    Raises:
        RedirectError: modules of an installed dlrover are loaded already.
    """
    inherited = environ.get(VARIABLE) == ROOT
    finder = install()
    environ.update(environment(environ))
    if finder is None or inherited:
        return
    also = f"other modules are those of {finder.home}" if finder.home else "no dlrover is installed beside it"
    sys.stderr.write(f"dljob.compat: DLRover's API is dljob's here; {also}\n")
