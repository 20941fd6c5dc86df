"""Makes the helper modules beside the tests importable, and gives a cluster in memory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from fake_cluster import FakeCluster

    from dljob.kube.api import Kube


@pytest.fixture
def fake() -> FakeCluster:
    """Return an in-memory API server that does not serve yet."""
    from fake_cluster import FakeCluster

    return FakeCluster()


@pytest.fixture
async def kube(fake: FakeCluster) -> AsyncIterator[Kube]:
    """Yield a client of the in-memory API server."""
    from fake_cluster import client_of

    server = await fake.serve()
    client = client_of(server)
    yield client
    await client.close()
    fake.cut()
    await server.close()
