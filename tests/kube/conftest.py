"""Kubernetes for tests: a control plane, fake nodes, a real node; each boots once a session or skips with the reason.

With `DLJOB_E2E=1` tests use the cluster of `KUBECONFIG` instead, which must have KubeRay; our CRD is applied there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parent / "kits"))
sys.path.insert(2, str(Path(__file__).parents[1] / "kits"))

from cluster import cache, kuberay, up
from cluster import kwok as fake
from cluster.handle import Cluster

if TYPE_CHECKING:
    from operator_kit import Head, Operator

HEAVY = ("node", "plane")  # fixtures that boot something


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test `node` or `kube` by its fixtures, and extend its timeout by the time that booting takes."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        fixtures = getattr(item, "fixturenames", ())
        if not any(item.get_closest_marker(m) for m in ("kube", "node", "frameworks")):
            item.add_marker("node" if "node" in fixtures else "kube")
        if item.get_closest_marker("timeout") is None and any(f in fixtures for f in HEAVY):
            item.add_marker(pytest.mark.timeout(300))


def foreign() -> Cluster | None:
    """Return the existing cluster of `KUBECONFIG`, which the user provides."""
    if os.environ.get("DLJOB_E2E") != "1":
        return None
    config = os.environ.get("KUBECONFIG", "")
    if not config or not Path(config).exists():
        pytest.fail(f"DLJOB_E2E=1 asks for the cluster of KUBECONFIG, which names no file: {config!r}")
    cluster = Cluster(Path(config))
    cluster.crds(*kuberay.CRDS)
    up.ours(cluster)
    return cluster


def booted(name: str, boot: Callable[[Path], Cluster]) -> Iterator[Cluster]:
    """Yield a cluster for the session, or skip with what this machine lacks."""
    run = up.owned(name)
    try:
        cluster = foreign()
        if cluster is not None:
            yield cluster
            return
        cluster = boot(run)
    except cache.MissingError as e:
        pytest.skip(str(e))
    try:
        yield cluster
    finally:
        up.down(run)


@pytest.fixture(scope="session")
def plane() -> Iterator[Cluster]:
    """Return a control plane with KubeRay as a process and our CRD; it has no node, so pods stay Pending."""
    yield from booted("plane", up.plane)


@pytest.fixture(scope="session")
def node() -> Iterator[Cluster]:
    """Return a cluster with a real node named `node`, KubeRay and our CRD; pods run and are reachable by address."""
    yield from booted("node", up.real)


@pytest.fixture
def kwok(plane: Cluster) -> Iterator[Callable[..., None]]:
    """Return `kwok(count, prefix=..., resources=...)`, which adds fake nodes whose pods run at once, for one test."""
    run = plane.run
    if run is None:
        pytest.skip("an existing cluster gets no fake nodes: unset DLJOB_E2E")
    try:
        cache.program("kwok")
    except cache.MissingError as e:
        pytest.skip(str(e))
    yield lambda count, **options: fake.add(plane, run, count, **options)
    plane.kubectl("delete", "nodes", "-l", fake.LABEL)


@pytest.fixture
def namespace(plane: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a namespace of the control plane, named after the test."""
    from operator_kit import namespaced

    yield from namespaced(plane, request.node.name)


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Yield an operator of the control plane, whose pods get an init container of an image that is not there."""
    from operator_kit import running

    with running(plane, tmp_path_factory.mktemp("operator"), "--init-image=example.test/init:1") as operator:
        yield operator


@pytest.fixture
def head(request: pytest.FixtureRequest) -> Iterator[Head]:
    """Yield a head at the address `HEAD` of the test's file: files run side by side."""
    from operator_kit import Head

    made = Head(request.module.HEAD)
    yield made
    made.close()
