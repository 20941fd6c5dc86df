"""`dljob version`: versions of dljob and its libraries."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated, Literal

from cyclopts import Parameter

from dljob.cli import output

Form = Literal["text", "json", "yaml"]
_PACKAGES = ("dljob", "ray", "torch")


def version(*, form: Annotated[Form, Parameter(name=("--output", "-o"))] = "text") -> None:
    """Show the versions of dljob, Python, Ray and torch.

    Args:
        form: text, json or yaml.
    """
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = installed(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    ordered = {name: versions[name] for name in ("dljob", "python", "ray", "torch")}
    if form == "text":
        output.data("\n".join(f"{name} {number}" for name, number in ordered.items()))
    else:
        output.structured(ordered, form)
