"""Check of a pod's Python, Ray and dljob against what the operator sent: the launcher's first step.

An image may have any Python: this file must be readable by interpreters back to Python 3.8, which cannot import the
rest of dljob.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import NamedTuple

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Versions of Python that dljob supports; pyproject.toml lists the same."""
RAY = "2.60"
"""The minor version of Ray that dljob supports: the runtime relies on details that other minor versions may change."""


class Incompatible(NamedTuple):
    """The reason why a job cannot start here: a word for programs, a message and a hint for users."""

    reason: str
    message: str
    hint: str


class Versions(NamedTuple):
    """The versions in a process; None for what is not installed."""

    python: tuple[int, ...]
    ray: str | None
    dljob: str | None


def installed_versions() -> Versions:
    """Return the versions of this process, without importing Ray."""
    return Versions(tuple(sys.version_info[:3]), _installed("ray"), _installed("dljob"))


def refusal(own_versions: Versions, ray: str, dljob: str) -> Incompatible | None:
    """Return the first mismatch of Python, Ray or dljob, in this order; None when the job can start.

    Args:
        own_versions: The versions in the image.
        ray: The job's claim (spec.rayVersion); the patch number may differ.
        dljob: The operator's version; the patch number may differ.
    """
    return _python(own_versions) or _ray(own_versions, ray) or _dljob(own_versions, dljob)


def _python(own_versions: Versions) -> Incompatible | None:
    if own_versions.python[:2] in PYTHONS:
        return None
    can = " and ".join("{}.{}".format(*version) for version in PYTHONS)
    return Incompatible(
        "PythonVersionMismatch",
        "the image has Python {}; dljob runs on {}".format(".".join(map(str, own_versions.python)), can),
        "use an image with Ray {} on Python {}.{}, in every pod the same".format(RAY, *PYTHONS[0]),
    )


def _ray(own_versions: Versions, job_version: str) -> Incompatible | None:
    if own_versions.ray is None:
        message, hint = "the image has no Ray", f"use an image with ray[default]=={job_version}"
    elif _minor(own_versions.ray) != _minor(job_version):
        message = f"the image has Ray {own_versions.ray}; the job says {job_version}"
        hint = f"set spec.rayVersion to {own_versions.ray}, or spec.image to one with Ray {job_version}"
    elif _minor(own_versions.ray) != RAY:
        message, hint = (
            f"the image has Ray {own_versions.ray}; this dljob runs on Ray {RAY}",
            f"use an image with Ray {RAY}",
        )
    else:
        return None
    return Incompatible("RayVersionMismatch", message, hint)


def _dljob(own_versions: Versions, operator_version: str) -> Incompatible | None:
    if own_versions.dljob is not None and _minor(own_versions.dljob) == _minor(operator_version):
        return None
    has = f"dljob {own_versions.dljob}" if own_versions.dljob else "dljob without its metadata"
    return Incompatible(
        "DLJobVersionMismatch",
        f"the image has {has}; the operator is of version {operator_version}",
        "let the operator bring its own dljob (its initImage), or rebuild the image with that version",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
