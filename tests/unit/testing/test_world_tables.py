"""Tables of a world: their indices follow each change, and a copy has indices of its own."""

from __future__ import annotations

from dataclasses import replace

from dljob.master.state.views import NodeView
from dljob.testing.world.model import Node, Silence
from dljob.testing.world.tables import NodeTable, PlacedTable

A, B = NodeView("a", (), (), ()), NodeView("b", (), (), ())


def test_node_indices_follow_each_change() -> None:
    """A silent node does not speak, an unlisted one has no view, and a removed one is in no index."""
    nodes = NodeTable((B, A))
    assert (list(nodes.views.values()), nodes.speaking) == ([B, A], ["a", "b"])
    nodes["b"] = replace(nodes["b"], silence=Silence.CUT)
    assert (list(nodes.views), nodes.speaking) == (["b", "a"], ["a"])
    nodes["b"] = replace(nodes["b"], listed=False)
    assert (list(nodes.views), nodes.speaking) == (["a"], ["a"])
    nodes["b"] = Node(B)
    assert (list(nodes.views), nodes.speaking) == (["a", "b"], ["a", "b"])
    del nodes["a"]
    assert (list(nodes), list(nodes.views), nodes.speaking) == (["b"], ["b"], ["b"])


def test_copied_nodes_have_their_own_indices() -> None:
    """What changes in a copy does not change in the table."""
    nodes = NodeTable((A, B))
    other = nodes.copy()
    del other["a"]
    assert (list(nodes), list(nodes.views), nodes.speaking) == (["a", "b"], ["a", "b"], ["a", "b"])
    assert (list(other), list(other.views), other.speaking) == (["b"], ["b"], ["b"])


def test_keys_are_found_by_their_node() -> None:
    """A key is on the node of its value, in the order of its coming; a copy has an index of its own."""
    table = PlacedTable[int, str](str)
    table[2], table[1], table[3] = "a", "a", "b"
    other = table.copy()
    table[2] = "b"
    assert (table.on("a"), table.on("b"), table.on("c")) == ([1], [3, 2], [])
    assert (table.pop(3), table.pop(3), table.on("b")) == ("b", None, [2])
    del table[1]
    assert (table.on("a"), dict(table)) == ([], {2: "b"})
    table.clear()
    assert (table.on("b"), dict(other), other.on("a")) == ([], {2: "a", 1: "a", 3: "b"}, [2, 1])
