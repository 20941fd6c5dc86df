"""A package of somebody else's: it leaves its orders of machines in the store of Ray, where the test looks."""

from __future__ import annotations

from ray.experimental import internal_kv

from dljob import BadNode, NodeRelauncher


class Cloudy(NodeRelauncher):
    """Leaves its order, with what is wrong with the machine, under the machine's id."""

    def relaunch(self, node: BadNode) -> None:
        """Order one more."""
        internal_kv._internal_kv_put(node.node, node.reason.encode(), namespace="cloudy")


def ordered(node: str) -> str:
    """Why another machine was ordered for this one; empty: none was."""
    return (internal_kv._internal_kv_get(node, namespace="cloudy") or b"").decode()
