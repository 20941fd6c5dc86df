"""Meshes: coordinates of a role's ranks on named axes (dp, tp, pp, cp), and the rank that answers for each shard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dljob.errors import UsageError

LAST_ANSWERS = "pp"
"""The axis on which the last coordinate answers instead of the first: the last stage of a pipeline has the output."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Axes and their sizes in order; the last varies fastest from rank to rank, as in torch's DeviceMesh."""

    axes: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        """Number of ranks of the mesh."""
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return axis -> coordinate of a rank."""
        found: dict[str, int] = {}
        # From the last axis on: it varies fastest, so its coordinate is the remainder of the first division.
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        # Back in the order of the axes, as declared.
        return {name: found[name] for name, _ in self.axes}


@dataclass(frozen=True, slots=True)
class Layout:
    """The shards of a mesh: the shard of each rank, and for each shard the rank that answers for it."""

    shard_of: tuple[int, ...]
    answering: tuple[int, ...]

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.answering)

    def answers(self, rank: int) -> bool:
        """Return whether a rank answers for its shard."""
        return self.answering[self.shard_of[rank]] == rank


def mesh_of(declared: Mapping[str, int], ranks: int, role: str) -> Mesh:
    """Return the mesh that a role's class declares; one size may be -1, for the remaining ranks.

    Raises:
        UsageError: a size is no whole number from 1, or the product of the sizes is not the number of ranks.
    """
    sizes = dict(declared)
    open_axes = [name for name, size in sizes.items() if size == -1]
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):  # pyright: ignore[reportUnnecessaryIsInstance] - users write it
            raise UsageError(f"mesh of role {role}: axis {name!r} is {size!r}; wanted a whole number from 1, or -1")
    known = math.prod(size for size in sizes.values() if size != -1)
    # Otherwise the -1 stays, and the sizes cannot multiply to the number of ranks below.
    if len(open_axes) == 1 and ranks % known == 0:
        sizes[open_axes[0]] = ranks // known
    mesh = Mesh(tuple(sizes.items()))
    # Two open axes need the check of their own: -1 times -1 is a valid product.
    if len(open_axes) > 1 or mesh.size != ranks:
        said = ", ".join(f"{name} {size}" for name, size in declared.items())
        raise UsageError(
            f"mesh of role {role}: {said} does not make its {ranks} ranks",
            hint="the product of all axes is the number of ranks; one axis may be -1: all that remain",
        )
    return mesh


def misfit(declared: Mapping[str, int], group_size: int, role: str) -> str:
    """Return why a mesh does not fit a role whose number of ranks changes; empty when it fits every number.

    Such a role grows and shrinks by whole groups, so the axes of fixed size must divide one, and another must be open.
    Sizes that make no mesh at all are told by `mesh_of`.
    """
    if not declared or not all(isinstance(size, int) and (size > 0 or size == -1) for size in declared.values()):  # pyright: ignore[reportUnnecessaryIsInstance] - users write it
        return ""
    said = ", ".join(f"{name} {size}" for name, size in declared.items())
    known = math.prod(size for size in declared.values() if size != -1)
    if -1 not in declared.values():
        return (
            f"mesh of role {role}: {said} makes {known} ranks, but minReplicas and maxReplicas let their number "
            "change; make one axis -1: all that remain"
        )
    if group_size % known == 0:
        return ""
    return (
        f"mesh of role {role}: {said} needs ranks in multiples of {known}, but the role grows and shrinks by "
        f"{group_size}; set replicasPerGroup: {known}, so that whole groups of {known} come and go"
    )


def layout(mesh: Mesh, names: Sequence[str], role: str) -> Layout:
    """Return the shards over some axes: ranks that differ only on the other axes share a shard.

    Of these ranks the one at coordinate 0 of the other axes answers; on `pp` the one at the last coordinate.

    Raises:
        UsageError: the mesh has no such axis.
    """
    sizes = dict(mesh.axes)
    for name in names:
        if name not in sizes:
            there = ", ".join(sizes) or "none"
            raise UsageError(
                f"mesh={','.join(names)!r}: role {role} has no axis {name!r}",
                hint=f"it has: {there}; a class says so by `mesh = {{'dp': -1, 'tp': 2}}`",
            )
    shard_of: list[int] = []
    answering: dict[int, int] = {}
    for rank in range(mesh.size):
        at = mesh.coordinates(rank)
        shard = 0
        for name in names:
            # In the order of `names`: "dp,cp" and "cp,dp" number the shards differently.
            shard = shard * sizes[name] + at[name]
        shard_of.append(shard)
        others = (name for name in sizes if name not in names)
        if all(at[name] == (sizes[name] - 1 if name == LAST_ANSWERS else 0) for name in others):
            answering[shard] = rank
    return Layout(tuple(shard_of), tuple(answering[shard] for shard in range(len(answering))))


def every_rank(ranks: int) -> Layout:
    """Return the layout without a mesh: each rank is its own shard."""
    return Layout(tuple(range(ranks)), tuple(range(ranks)))
