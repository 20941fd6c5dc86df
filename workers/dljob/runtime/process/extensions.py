"""Extensions of a job, found by entry point: SubMasters, relaunchers of nodes, metric sinks, and weight transports.

Backends are found in the same way (`backend.connect`). A package declares them in its pyproject.toml:

    [project.entry-points."dljob.submasters"]
    ring = "ringmaster:RingMaster"
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, distributions, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dljob.errors import UsageError
from dljob.plan.tools import TOOLS_PACKAGE, roles_with_tools

if TYPE_CHECKING:
    from dljob.spec.model import DLJobSpec

TOOLS_DISTRIBUTION = "dljob-tools"
SUB_MASTERS = "dljob.submasters"
RELAUNCHERS = "dljob.noderelaunchers"
SINKS = "dljob.sinks"
WEIGHT_TRANSPORTS = "dljob.weight_transports"


def installed(group: str, code_dir: str = "") -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Packages in the folder of user code win over installed ones."""
    # Not by `entry_points()`, which looks along this process's import path alone: the code's folder may not be on it.
    path = [code_dir, *sys.path] if code_dir else sys.path
    points = [p for wheel in distributions(path=path) for p in wheel.entry_points if p.group == group]
    # Reversed, so that the first of several with the same name wins.
    return {point.name: point for point in reversed(points)}


def check_version(wheel: Distribution | None, user: str) -> None:
    """Refuse dljob-tools of another version than dljob's. Other packages have versions of their own.

    Args:
        wheel: the package that `user` comes from; None: it is not known.
        user: command, backend or role that needs it, for the error.

    Raises:
        UsageError: the versions differ.
    """
    if wheel is not None and wheel.name == TOOLS_DISTRIBUTION and wheel.version != version("dljob"):
        raise UsageError(
            f"{user}: {TOOLS_DISTRIBUTION} {wheel.version} is installed beside dljob {version('dljob')}",
            hint=f"pip install {TOOLS_DISTRIBUTION}=={version('dljob')}",
        )


def check(spec: DLJobSpec, code_dir: str) -> None:
    """Check that all extensions that a job names are installed, before anything of the job starts.

    Raises:
        UsageError: One is missing; the message lists those that are installed.
    """
    if roles := roles_with_tools(spec):
        if find_spec(TOOLS_PACKAGE) is None:
            raise UsageError(
                f"role {roles[0]} runs {TOOLS_PACKAGE}, which is not installed here",
                hint="on every machine of the job: pip install 'dljob[tools]'",
            )
        with suppress(PackageNotFoundError):  # its sources alone are on the path
            check_version(distribution(TOOLS_DISTRIBUTION), f"role {roles[0]}")
    for role in spec.roles:
        if role.comm.sub_master:
            find_entry_point(SUB_MASTERS, role.comm.sub_master, f"role {role.name}: the SubMaster", code_dir)
    if spec.fault_tolerance.node.relauncher:
        find_entry_point(RELAUNCHERS, spec.fault_tolerance.node.relauncher, "the relauncher")


def load(group: str, name: str, whose: str, code_dir: str = "") -> Any:
    """Load the object that an entry point names.

    Raises:
        UsageError: There is no entry point of that name.
        ImportError, AttributeError: It cannot be loaded.
    """
    return find_entry_point(group, name, whose, code_dir).load()


def find_entry_point(group: str, name: str, whose: str, code_dir: str = "") -> EntryPoint:
    """Return the entry point of a name in a group, for `whose`, with which a message may begin.

    Raises:
        UsageError: There is none; the message lists those that are installed.
    """
    points = installed(group, code_dir)
    if name not in points:
        raise UsageError(
            f"{whose} {name!r} is not installed; installed: {', '.join(sorted(points)) or 'none'}",
            hint=f"install the package whose entry point in {group} is {name!r}, on every machine of the job",
        )
    return points[name]
