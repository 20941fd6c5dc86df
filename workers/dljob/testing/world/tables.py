"""Tables of a world with indices: a lost machine of thousands is then found without a pass over all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from dljob.master.state.views import NodeView
from dljob.testing.world.model import Node, Silence

K = TypeVar("K")
V = TypeVar("V")


class NodeTable(dict[str, Node]):
    """The nodes by name.

    Attributes:
        views: name -> view of each node that the cluster lists.
        speaking: sorted names of the nodes that answer.
    """

    def __init__(self, views: Iterable[NodeView] = ()) -> None:
        super().__init__()
        self.views: dict[str, NodeView] = {}
        self.speaking: list[str] = []
        for view in views:
            self[view.id] = Node(view)

    def __setitem__(self, name: str, node: Node) -> None:
        self._forget(name, listed=node.listed, speaks=node.silence is Silence.NONE)
        if node.listed:
            self.views[name] = node.view
        super().__setitem__(name, node)

    def __delitem__(self, name: str) -> None:
        self._forget(name, listed=False, speaks=False)
        super().__delitem__(name)

    def _forget(self, name: str, *, listed: bool, speaks: bool) -> None:
        """Bring the indices to what a node is about to be; the view itself is set by the caller."""
        old = self.get(name)
        if not listed:
            self.views.pop(name, None)
        spoke = old is not None and old.silence is Silence.NONE
        if speaks and not spoke:
            insort(self.speaking, name)
        elif spoke and not speaks:
            del self.speaking[bisect_left(self.speaking, name)]

    def copy(self) -> Self:
        """Return a table of its own with the same nodes."""
        new = self.__class__()
        new.update(self)  # past `__setitem__`: the indices are copied
        new.views, new.speaking = self.views.copy(), self.speaking.copy()
        return new


class PlacedTable(dict[K, V]):
    """A table whose values are on nodes.

    Attributes:
        node_of: returns the node of a value.
        keys_on: node -> the keys of its values, in the order in which they came.
    """

    def __init__(self, node_of: Callable[[V], str]) -> None:
        super().__init__()
        self.node_of = node_of
        self.keys_on: dict[str, dict[K, None]] = {}

    def on(self, node: str) -> list[K]:
        """Return the keys whose values are on a node."""
        return list(self.keys_on.get(node, ()))

    def __setitem__(self, key: K, value: V) -> None:
        node = self.node_of(value)
        if key in self and self.node_of(self[key]) != node:
            self._drop(key)
        self.keys_on.setdefault(node, {})[key] = None
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._drop(key)
        super().__delitem__(key)

    def pop(self, key: K, default: V | None = None) -> V | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Remove a key; return its value, or the default without one."""
        if key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Remove all."""
        self.keys_on.clear()
        super().clear()

    def copy(self) -> Self:
        """Return a table of its own with the same values."""
        new = self.__class__(self.node_of)
        new.update(self)  # past `__setitem__`: the indices are copied
        new.keys_on = {node: keys.copy() for node, keys in self.keys_on.items()}
        return new

    def _drop(self, key: K) -> None:
        """Remove a key from the index."""
        node = self.node_of(self[key])
        keys = self.keys_on[node]
        del keys[key]
        if not keys:
            del self.keys_on[node]
