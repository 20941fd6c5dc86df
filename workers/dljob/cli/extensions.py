"""What the wheel dljob-tools adds to the command, found by entry points: commands, runners, choosers of resources.

`importlib.metadata` is imported where it is needed: it brings 60 modules, which most commands never use.
"""

from __future__ import annotations

from typing import Any

from dljob.errors import UsageError, not_installed

COMMANDS, RUNNERS, CHOOSERS = "dljob.commands", "dljob.runners", "dljob.choosers"


def names(group: str) -> set[str]:
    """Return the names of a group that are installed."""
    from importlib.metadata import entry_points

    return {point.name for point in entry_points(group=group)}


def load(group: str, name: str, user: str) -> Any:  # noqa: ANN401 - whatever it is
    """Load the object of an entry point.

    Args:
        group: group of the entry point.
        name: its name.
        user: command or field that needs it, for the error.

    Raises:
        UsageError: no wheel has it, one of another version has, or it cannot be imported.
    """
    from importlib.metadata import entry_points, version

    from dljob.runtime.process.extensions import check_version

    point = next(iter(entry_points(group=group, name=name)), None)
    if point is None:
        raise UsageError(f"{user}: needs dljob[tools]", hint="pip install 'dljob[tools]'")
    check_version(point.dist, user)
    try:
        return point.load()
    except Exception as error:
        # A package of another extra is missing: that is told in its own words.
        if isinstance(error, ModuleNotFoundError) and not_installed(error):
            raise
        wheel = point.dist.name if point.dist else "its package"
        raise UsageError(
            f"{user}: {point.value} of {wheel} cannot be imported: {type(error).__name__}: {error}",
            hint=f"install {wheel} again: pip install --force-reinstall --no-deps {wheel}=={version('dljob')}",
        ) from error
