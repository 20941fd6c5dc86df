"""The operator and namespaces of the tests on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, namespaced, with_images


@pytest.fixture(scope="module")
def operator(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Yield an operator that runs the built images."""
    with with_images(node, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


@pytest.fixture
def namespace(node: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace named after the test."""
    yield from namespaced(node, request.node.name)
