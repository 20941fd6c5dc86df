"""Where ranks stand on a mesh, and which answers for its shard."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob import UsageError
from dljob.calls.mesh import Mesh, layout_over_axes, layout_without_mesh, mesh_from_axes, resize_misfit

AXES = ("pp", "dp", "cp", "tp")


@st.composite
def meshes(draw):
    names = draw(st.permutations(AXES))[: draw(st.integers(1, 4))]
    return Mesh(tuple((name, draw(st.integers(1, 4))) for name in names))


@given(meshes())
def test_coordinates_number_the_ranks_row_by_row(mesh):
    sizes = [range(size) for _, size in mesh.axes]
    assert [tuple(mesh.coordinates(rank).values()) for rank in range(mesh.size)] == list(itertools.product(*sizes))


@given(meshes(), st.data())
def test_shards_part_the_ranks_and_one_of_each_answers(mesh, data):
    names = data.draw(st.lists(st.sampled_from([name for name, _ in mesh.axes]), unique=True, min_size=1))
    layout = layout_over_axes(mesh, names, "r")
    sizes = dict(mesh.axes)
    assert layout.shard_count == math.prod(sizes[name] for name in names)
    assert len(layout.shard_of) == mesh.size
    for shard in range(layout.shard_count):
        members = [rank for rank in range(mesh.size) if layout.shard_of[rank] == shard]
        assert len(members) == mesh.size // layout.shard_count
        assert [rank for rank in members if layout.answers_for_shard(rank)] == [layout.answering_ranks[shard]]
        assert len({tuple(mesh.coordinates(rank)[name] for name in names) for rank in members}) == 1


def test_last_stage_of_a_pipeline_answers_and_the_first_of_the_other_axes():
    mesh = mesh_from_axes({"pp": 2, "dp": 2, "tp": 2}, 8, "actor")
    assert mesh.coordinates(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert layout_over_axes(mesh, ("dp",), "actor").shard_of == (0, 0, 1, 1, 0, 0, 1, 1)
    assert layout_over_axes(mesh, ("dp",), "actor").answering_ranks == (4, 6)
    assert layout_over_axes(mesh, ("dp", "tp"), "actor").answering_ranks == (4, 5, 6, 7)


def test_open_axis_is_what_is_left():
    assert mesh_from_axes({"dp": -1, "tp": 4}, 8, "r").axes == (("dp", 2), ("tp", 4))
    assert layout_without_mesh(3).answering_ranks == (0, 1, 2)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"dp": 3, "tp": 2}, "dp 3, tp 2 does not make its 8 ranks"),
        ({"dp": -1, "tp": 3}, "does not make its 8 ranks"),
        ({"dp": -1, "tp": -1}, "does not make its 8 ranks"),
        ({"dp": 0}, "axis 'dp' is 0"),
        ({"dp": True}, "axis 'dp' is True"),
        ({"dp": 1.5}, r"axis 'dp' is 1\.5"),
    ],
)
def test_mesh_that_does_not_make_the_role_is_refused(declared, words):
    with pytest.raises(UsageError, match=words):
        mesh_from_axes(declared, 8, "r")


def test_axis_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UsageError, match=r"mesh='ep': role r has no axis 'ep'\n  it has: dp, tp"):
        layout_over_axes(mesh_from_axes({"dp": 4, "tp": 2}, 8, "r"), ("ep",), "r")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({}, ""),
        ({"dp": -1}, ""),
        ({"dp": -1, "tp": 4}, ""),
        ({"dp": -1, "tp": 2}, ""),
        ({"dp": -1, "tp": 3}, "multiples of 3, but the role grows and shrinks by 4; set replicasPerGroup: 3"),
        ({"dp": -1, "tp": 8}, "set replicasPerGroup: 8"),
        ({"dp": 2, "tp": 2}, "dp 2, tp 2 makes 4 ranks, but minReplicas and maxReplicas let their number change"),
        ({"dp": "2"}, ""),
        ({"dp": 0, "tp": -1}, ""),
    ],
)
def test_mesh_of_a_role_that_resizes_divides_its_groups(declared, words):
    assert words in resize_misfit(declared, 4, "r")
    assert bool(resize_misfit(declared, 4, "r")) == bool(words)
