"""Meshes: coordinates of a role's ranks on named axes (dp, tp, pp, cp), and the rank that answers for each shard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dljob.errors import UsageError
from dljob.telemetry.wording import counted

PIPELINE_AXIS = "pp"
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
        reversed_coordinates: dict[str, int] = {}
        remaining_rank = rank
        # From the last axis on: it varies fastest, so its coordinate is the remainder of the first division.
        for name, size in reversed(self.axes):
            remaining_rank, reversed_coordinates[name] = divmod(remaining_rank, size)
        return dict(reversed(reversed_coordinates.items()))


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The shards of a mesh: the shard of each rank, and for each shard the rank that answers for it."""

    shard_of: tuple[int, ...]
    answering_ranks: tuple[int, ...]

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return len(self.answering_ranks)

    def answers_for_shard(self, rank: int) -> bool:
        """Return whether a rank is the one that answers for its shard."""
        return self.answering_ranks[self.shard_of[rank]] == rank


def mesh_from_axes(declared_axes: Mapping[str, int], rank_count: int, role: str) -> Mesh:
    """Return the mesh that a role's class declares; one size may be -1, for the remaining ranks.

    Raises:
        UsageError: a size is no whole number from 1, or the product of the sizes is not the number of ranks.
    """
    sizes = dict(declared_axes)
    open_axes = [name for name, size in sizes.items() if size == -1]
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):  # pyright: ignore[reportUnnecessaryIsInstance] - users write it
            raise UsageError(f"mesh of role {role}: axis {name!r} is {size!r}; wanted a whole number from 1, or -1")
    fixed_size = math.prod(size for size in sizes.values() if size != -1)
    # Otherwise the -1 stays, and the sizes cannot multiply to the number of ranks below.
    if len(open_axes) == 1 and rank_count % fixed_size == 0:
        sizes[open_axes[0]] = rank_count // fixed_size
    mesh = Mesh(tuple(sizes.items()))
    # Two open axes need the check of their own: -1 times -1 is a valid product.
    if len(open_axes) > 1 or mesh.size != rank_count:
        raise UsageError(
            f"mesh of role {role}: {_axes_text(declared_axes)} does not make its {counted(rank_count, 'rank')}",
            hint="the product of all axes is the number of ranks; one axis may be -1: all that remain",
        )
    return mesh


def _axes_text(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in axes.items())


def resize_misfit(declared_axes: Mapping[str, int], group_size: int, role: str) -> str:
    """Return why a mesh does not fit a role whose number of ranks changes; empty when it fits every number.

    Such a role grows and shrinks by whole groups, so the axes of fixed size must divide one, and another must be open.
    Sizes that make no mesh at all are reported by `mesh_from_axes`.
    """
    sizes = declared_axes.values()
    if not sizes or not all(isinstance(size, int) and (size > 0 or size == -1) for size in sizes):  # pyright: ignore[reportUnnecessaryIsInstance] - users write it
        return ""
    fixed_size = math.prod(size for size in sizes if size != -1)
    if -1 not in sizes:
        return (
            f"mesh of role {role}: {_axes_text(declared_axes)} makes {counted(fixed_size, 'rank')}, but minReplicas "
            "and maxReplicas let their number change; make one axis -1: all that remain"
        )
    if group_size % fixed_size == 0:
        return ""
    return (
        f"mesh of role {role}: {_axes_text(declared_axes)} needs ranks in multiples of {fixed_size}, but the role "
        f"grows and shrinks by {group_size}; set replicasPerGroup: {fixed_size}, so that whole groups of {fixed_size} "
        "come and go"
    )


def layout_over_axes(mesh: Mesh, shard_axes: Sequence[str], role: str) -> ShardLayout:
    """Return the shards over some axes: ranks that differ only on the other axes share a shard.

    Of these ranks the one at coordinate 0 of the other axes answers; on `pp` the one at the last coordinate.

    Raises:
        UsageError: the mesh has no such axis.
    """
    sizes = dict(mesh.axes)
    for name in shard_axes:
        if name not in sizes:
            raise UsageError(
                f"mesh={','.join(shard_axes)!r}: role {role} has no axis {name!r}",
                hint=f"it has: {', '.join(sizes) or 'none'}; a class says so by `mesh = {{'dp': -1, 'tp': 2}}`",
            )
    shard_of: list[int] = []
    answering_ranks: dict[int, int] = {}
    for rank in range(mesh.size):
        coordinates = mesh.coordinates(rank)
        shard = 0
        for name in shard_axes:
            # In the order of `shard_axes`: "dp,cp" and "cp,dp" number the shards differently.
            shard = shard * sizes[name] + coordinates[name]
        shard_of.append(shard)
        other_axes = (name for name in sizes if name not in shard_axes)
        if all(coordinates[name] == (sizes[name] - 1 if name == PIPELINE_AXIS else 0) for name in other_axes):
            answering_ranks[shard] = rank
    return ShardLayout(tuple(shard_of), tuple(answering_ranks[shard] for shard in range(len(answering_ranks))))


def layout_without_mesh(rank_count: int) -> ShardLayout:
    """Return the layout of a role without a mesh: each rank is its own shard."""
    return ShardLayout(tuple(range(rank_count)), tuple(range(rank_count)))
