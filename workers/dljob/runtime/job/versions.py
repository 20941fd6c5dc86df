"""Whether a pod's Python, Ray and dljob can run what the operator sent; the first thing that the launcher looks at.

It must be readable by interpreters that cannot run the rest of dljob, back to Python 3.8.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import NamedTuple

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""What dljob runs on; pyproject.toml says the same."""
RAY = "2.60"
"""The Ray that dljob is made for: the runtime relies on what other minor versions may do otherwise."""


class Incompatible(NamedTuple):
    """Why a job is not begun here, in a word for machines and in sentences for people."""

    reason: str
    message: str
    hint: str


class Versions(NamedTuple):
    """What a process finds around it; None for what is not installed."""

    python: tuple[int, ...]
    ray: str | None
    dljob: str | None


def found() -> Versions:
    """The versions of this process. Ray is not imported."""
    return Versions(tuple(sys.version_info[:3]), _installed("ray"), _installed("dljob"))


def refusal(here: Versions, ray: str, dljob: str) -> Incompatible | None:
    """What does not match, first Python, then Ray, then dljob; None when the job can begin.

    Args:
        here: What the image has.
        ray: What the job says the image has (spec.rayVersion); its last number may differ.
        dljob: The operator's version; its last number may differ.
    """
    return _python(here) or _ray(here, ray) or _dljob(here, dljob)


def _python(here: Versions) -> Incompatible | None:
    if here.python[:2] in PYTHONS:
        return None
    can = " and ".join("{}.{}".format(*version) for version in PYTHONS)
    return Incompatible(
        "PythonVersionMismatch",
        "the image has Python {}; dljob runs on {}".format(".".join(map(str, here.python)), can),
        "use an image with Ray {} on Python {}.{}, in every pod the same".format(RAY, *PYTHONS[0]),
    )


def _ray(here: Versions, wanted: str) -> Incompatible | None:
    if here.ray is None:
        message, hint = "the image has no Ray", f"use an image with ray[default]=={wanted}"
    elif _minor(here.ray) != _minor(wanted):
        message = f"the image has Ray {here.ray}; the job says {wanted}"
        hint = f"set spec.rayVersion to {here.ray}, or spec.image to one with Ray {wanted}"
    elif _minor(here.ray) != RAY:
        message, hint = f"the image has Ray {here.ray}; this dljob runs on Ray {RAY}", f"use an image with Ray {RAY}"
    else:
        return None
    return Incompatible("RayVersionMismatch", message, hint)


def _dljob(here: Versions, wanted: str) -> Incompatible | None:
    if here.dljob is not None and _minor(here.dljob) == _minor(wanted):
        return None
    has = f"dljob {here.dljob}" if here.dljob else "dljob without its metadata"
    return Incompatible(
        "DLJobVersionMismatch",
        f"the image has {has}; the operator is of version {wanted}",
        "let the operator bring its own dljob (its initImage), or build the image anew with that version",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
