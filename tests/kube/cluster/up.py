"""Boots and ends clusters. Each has its own folder, RUN, which holds all that is needed to end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from cluster import cache, kuberay, node, processes
from cluster.handle import Cluster
from cluster.plane import NAMES, Plane

CRD = "dljobs.dljob.io"
RELEASE, SPACE = "dljob", "dljob-system"
"""Name and namespace of the chart's release, as in the README."""
RUNS = cache.ROOT / ".kube"


def ours(cluster: Cluster) -> None:
    """Apply the project's CRD from the working tree and wait until it is served."""
    cluster.apply(cache.ROOT / "crds" / "dljob.io_dljobs.yaml")
    cluster.crds(CRD)


def adoptable(cluster: Cluster) -> None:
    """Mark the CRD as part of the chart's release of the README: helm refuses objects without its ownership labels."""
    marks = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": SPACE}
    meta = {"name": CRD, "annotations": marks, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta}
    cluster.kubectl("apply", "--server-side", "--field-manager=helm", "-f", "-", stdin=json.dumps(body))


def plane(run: Path, *, operator: bool = True) -> Cluster:
    """Start a control plane with our CRD and, if wanted, KubeRay as a process; one that runs in RUN already is kept.

    Raises:
        MissingError: a program is not built.
    """
    cluster = Cluster(run / "pki" / "admin.kubeconfig", run)
    if all(processes.find(run, name) for name in NAMES):
        ours(cluster)
        return cluster
    for name in ("kube", *(["kuberay"] if operator else [])):
        cache.program(name)
    down(run)
    a, b, c, d, e = processes.free_ports(5)
    with undone(run):
        Plane(run, "127.0.0.1", (a, b, c, d, e)).start()
        cluster.settle()
        ours(cluster)
        adoptable(cluster)
        if operator:
            kuberay.start(cluster, run)
    return cluster


def real(run: Path) -> Cluster:
    """Start a cluster with a real node, KubeRay and our CRD; one that runs in RUN already is kept.

    Raises:
        MissingError: this machine cannot run one.
    """
    cluster = Cluster(run / "node" / "pki" / "admin.kubeconfig", run)
    if processes.find(run, "node-first") and (run / "node" / "ready").exists():
        ours(cluster)
        return cluster
    down(run)
    with undone(run):
        cluster = node.start(run)
        ours(cluster)
        adoptable(cluster)
    return cluster


@contextlib.contextmanager
def undone(run: Path) -> Generator[None]:
    """End everything when the boot fails half way; the logs stay."""
    try:
        yield
    except BaseException:
        end(run)
        raise


def end(run: Path) -> list[str]:
    """End all processes of a cluster; returns their names."""
    was_node = (run / "pid" / "node").exists()
    ended = processes.stop_all(run)
    if was_node:
        node.clear()
    return ended


def down(run: Path) -> list[str]:
    """End a cluster and remove its folder; returns the names of the ended processes."""
    ended = end(run)
    if (run / "log").exists():  # It is a cluster's folder, not one named by mistake.
        shutil.rmtree(run)
    return ended


def owned(name: str) -> Path:
    """Return the folder of a cluster owned by this process; ends clusters whose owners were killed."""
    for left in RUNS.glob("of-*-*"):
        if not processes.birth(int(left.name.split("-")[1])):
            down(left)
    return RUNS / f"of-{os.getpid()}-{name}"
