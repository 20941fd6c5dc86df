"""Where ranks stand on a mesh, and which answers for its shard."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob import UsageError
from dljob.calls.mesh import Mesh, every_rank, layout, mesh_of, misfit

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
    found = layout(mesh, names, "r")
    sizes = dict(mesh.axes)
    assert found.shards == math.prod(sizes[name] for name in names)
    assert len(found.shard_of) == mesh.size
    for shard in range(found.shards):
        members = [rank for rank in range(mesh.size) if found.shard_of[rank] == shard]
        assert len(members) == mesh.size // found.shards
        assert [rank for rank in members if found.answers(rank)] == [found.answering[shard]]
        assert len({tuple(mesh.coordinates(rank)[name] for name in names) for rank in members}) == 1


def test_last_stage_of_a_pipeline_answers_and_the_first_of_the_other_axes():
    mesh = mesh_of({"pp": 2, "dp": 2, "tp": 2}, 8, "actor")
    assert mesh.coordinates(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert layout(mesh, ("dp",), "actor").shard_of == (0, 0, 1, 1, 0, 0, 1, 1)
    assert layout(mesh, ("dp",), "actor").answering == (4, 6)
    assert layout(mesh, ("dp", "tp"), "actor").answering == (4, 5, 6, 7)


def test_open_axis_is_what_is_left():
    assert mesh_of({"dp": -1, "tp": 4}, 8, "r").axes == (("dp", 2), ("tp", 4))
    assert every_rank(3).answering == (0, 1, 2)


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
        mesh_of(declared, 8, "r")


def test_axis_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(UsageError, match=r"mesh='ep': role r has no axis 'ep'\n  it has: dp, tp"):
        layout(mesh_of({"dp": 4, "tp": 2}, 8, "r"), ("ep",), "r")


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
    assert words in misfit(declared, 4, "r")
    assert bool(misfit(declared, 4, "r")) == bool(words)
