"""Documents of other kinds that start ranks: as no jobs they would be passed on, and nobody would say so."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, cast

from dljob.convert import command
from dljob.convert.pods import device_kind
from dljob.convert.source import SourceManifest
from dljob.spec.text.tree import Loc

_RENDEZVOUS_VARIABLES = frozenset(("MASTER_ADDR", "WORLD_SIZE"))
_SCRIPT_FIELDS = ("script", "source", "run", "entrypoint", "commands")
"""Fields in which workflows have a program's text or its lines: Tekton's steps, Argo's templates, and their like."""


class RankStarter(NamedTuple):
    """A field of a document that starts ranks."""

    loc: Loc
    description: str
    """Such as `runs torchrun`, `has MASTER_ADDR` or `holds a RayJob`."""


def find_rank_starter(source: SourceManifest, job_kinds: Collection[str]) -> RankStarter | None:
    """Return the first field that starts ranks or, as in an AppWrapper, holds a job of these kinds; None: no field."""
    for loc, fields in _find_mappings(source.root):
        if loc and {"apiVersion", "spec"} <= fields.keys() and fields.get("kind") in job_kinds:
            return RankStarter(loc, f"holds a {fields['kind']}")
        words = [word for key in ("command", "args") for word in _texts_in(fields.get(key))]
        env = {str(variable.get("name")): str(variable.get("value")) for variable in _mappings_in(fields.get("env"))}
        launcher = command.find_launcher(command.parse_words(words), env) if words else ""
        if launcher:
            return RankStarter((*loc, "command" if "command" in fields else "args"), f"runs {launcher}")
        for key in _SCRIPT_FIELDS:
            script_lines = "\n".join(_texts_in(fields.get(key))).replace("\\\n", " ").splitlines()
            programs = [line for line in script_lines if line.strip() and not line.lstrip().startswith("#")]
            launchers = (command.find_launcher(command.ContainerCommand((), line), env) for line in programs)
            if launcher := next(filter(None, launchers), ""):
                return RankStarter((*loc, key), f"runs {launcher}")
        if rendezvous_names := sorted(env.keys() & _RENDEZVOUS_VARIABLES):
            return RankStarter((*loc, "env"), f"has {rendezvous_names[0]}")
    return None


def has_devices(source: SourceManifest) -> bool:
    """Whether some pod of a document asks for devices."""
    return any(
        device_kind(name)
        for loc, fields in _find_mappings(source.root)
        if loc[-1:] in (("limits",), ("requests",))
        for name in fields
    )


def _find_mappings(value: object, loc: Loc = ()) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yield all mappings in a value with their places, outer ones first."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield loc, fields
        for key, child in fields.items():
            yield from _find_mappings(child, (*loc, key))
    elif isinstance(value, list):
        for index, child in enumerate(cast("list[object]", value)):
            yield from _find_mappings(child, (*loc, index))


def _texts_in(value: object) -> list[str]:
    """Return the texts of a list, or the text that the value is."""
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]


def _mappings_in(value: object) -> list[dict[str, Any]]:
    """Return the mappings of a list."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
