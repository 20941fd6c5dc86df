"""A job's life on a control plane with a stub head, from its creation until nothing of it is left."""

from __future__ import annotations

import itertools
from typing import Any

from cluster.handle import Cluster
from operator_kit import Head, children, found, job, run_head, token, until

IPS = itertools.count(2)


class Life:
    """A job; each step waits until the status shows it."""

    def __init__(self, plane: Cluster, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.head = Head(f"127.0.44.{next(IPS)}")
        plane.apply({**job("hello"), "metadata": {"name": "hello", "namespace": namespace}})
        self.uid: str = found(plane, "dljob", "hello", namespace)["metadata"]["uid"]

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.head.close()

    @property
    def status(self) -> dict[str, Any]:
        return found(self.plane, "dljob", "hello", self.namespace).get("status", {})

    def reach(self, phase: str) -> None:
        until(lambda: self.status.get("phase") == phase, f"the job is {phase}")

    def say(self, phase: str, **ranks: int) -> None:
        """Let the stub PrimeMaster report a phase and its ranks."""
        none = dict.fromkeys(("ready", "running", "succeeded", "failed", "restarts"), 0)
        role = {"name": "worker", "desired": 2, **none, **ranks}
        self.head.do(lambda: self.head.stub.say(self.uid.replace("-", ""), phase=phase, epoch=1, roles=[role]))

    def run(self) -> None:
        """Create the job and wait until PrimeMaster reports that it runs."""
        until(lambda: self.status.get("rayCluster", {}).get("name"), "it has a RayCluster")
        cluster = self.status["rayCluster"]["name"]
        self.head.stub.token = token(self.uid, cluster)
        run_head(self.plane, cluster, self.head.ip, self.namespace)
        until(lambda: self.head.stub.posted, "it is submitted")
        self.say("Running", ready=2, running=2)
        self.reach("Running")

    def succeed(self) -> None:
        """Let PrimeMaster report success; attempt 1 must be the only one."""
        self.say("Succeeded", succeeded=2)
        self.reach("Succeeded")
        until(lambda: not self.plane.get("rayclusters", "-n", self.namespace)["items"], "its RayCluster goes")
        status = self.status
        assert (status["attempt"], status.get("restartsTotal", 0)) == (1, 0)
        assert len(self.head.stub.posted) == 1, "one submission"

    def vanish(self) -> None:
        """Delete the job and wait until nothing of it is left."""
        self.plane.kubectl("delete", "dljob", "hello", "-n", self.namespace, "--timeout=60s")
        until(lambda: not children(self.plane, self.uid, self.namespace), "nothing of it is left")
