"""The Ray backend passes the suite that every backend must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backend_contract import BackendContract

pytestmark = pytest.mark.ray


class TestRayBackend(BackendContract):
    @pytest.fixture
    def backend(self, ray_here: Any) -> Any:
        from dljob.runtime.backend.ray_backend import RayBackend

        return RayBackend()

    @pytest.fixture
    def doomed_node(self, ray_here: Any) -> Iterator[Callable[[], tuple[str, Callable[[], None]]]]:
        made = []

        def make() -> tuple[str, Callable[[], None]]:
            node = ray_here.add_node()
            made.append(node)
            return node.node_id, lambda: ray_here.kill_raylet(node)

        yield make
        for node in made:
            ray_here.remove_node(node)
