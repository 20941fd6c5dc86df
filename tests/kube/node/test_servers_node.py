"""Servers in pods: found by their endpoints, called over the network, and in the job's Service while they are ready."""

from __future__ import annotations

from urllib.request import urlopen

import pytest
from cluster.handle import Cluster
from node_kit import ended, logs, told
from operator_kit import Operator, until

CODE = """
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import dljob


said = set()


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        said.add(self.path)
        self.send_response(503 if self.path == "/health" and "/off" in said else 200)
        self.end_headers()
        end = " for the last time" if "/end" in said else ""
        self.wfile.write(f"rank {dljob.current_worker().rank} answers{end}".encode())

    def log_message(self, *args):
        pass


def serve():
    HTTPServer((os.environ["DLJOB_HOST"], int(os.environ["DLJOB_PORT_HTTP"])), Engine).serve_forever()


def call():
    engines = dljob.endpoints("engine")
    for engine in engines:
        print(engine.address, "says", urlopen(engine.url("/"), timeout=10).read().decode(), flush=True)
    answer = ""
    while "last" not in answer:
        try:
            answer = urlopen("http://fleet-engine/", timeout=10).read().decode()
        except OSError as error:  # its address is not known yet
            answer = str(error)
        print("the Service:", answer, flush=True)
        time.sleep(0.2)
"""
NAME = "fleet"
READY = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1}
SPEC = {
    "code": {"configMap": "code"},
    "head": {"cpu": "200m", "memory": "2Gi"},
    "master": {"cpu": "100m", "memory": "512Mi"},
    "nodeGroups": [{"name": "g", "replicas": 3, "cpu": "250m", "memory": "1Gi"}],
    "roles": [
        {
            "name": "engine",
            "replicas": 2,
            "driver": False,
            "entrypoint": {"class": "servers.serve"},
            "resources": {"cpu": "100m", "memory": "600Mi"},
            "ports": [{"name": "http"}],
            "readinessProbe": READY,
            "service": True,
        },
        {
            "name": "caller",
            "entrypoint": {"class": "servers.call"},
            "resources": {"cpu": "100m", "memory": "600Mi"},
            "dependsOn": [{"role": "engine"}],
        },
    ],
}


@pytest.mark.timeout(480)
def test_servers_are_found_and_called_over_the_network(node: Cluster, operator: Operator, namespace: str) -> None:
    meta = {"name": NAME, "namespace": namespace}
    node.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**meta, "name": "code"},
            "data": {"servers.py": CODE},
        },
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": SPEC},
    )

    def addresses() -> set[str]:
        pods = node.get("pods", "-n", namespace, "-l", "ray.io/node-type=worker")["items"]
        return {pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")}

    pods: set[str] = until(lambda: len(found := addresses()) == 3 and found, "three pods with addresses", 120)

    def served() -> list[str]:
        """Address and port of each endpoint of the Service."""
        slices = node.get("endpointslices", "-n", namespace, "-l", f"kubernetes.io/service-name={NAME}-engine")["items"]
        return sorted(
            f"{one['addresses'][0]}:{part['ports'][0]['port']}" for part in slices for one in part["endpoints"] or ()
        )

    first, second = until(lambda: len(found := served()) == 2 and found, "both engines are in the Service", 180)
    urlopen(f"http://{second}/off", timeout=10).close()
    until(lambda: served() == [first], "the one that is not ready has left it", 30)
    urlopen(f"http://{first}/end", timeout=10).close()
    body = ended(node, NAME, namespace, 120)
    assert body["status"]["phase"] == "Succeeded", told(body)
    lines = logs(node, NAME, namespace)["caller-0.log"].splitlines()
    said = dict(line.split(" says ") for line in lines if " says " in line)
    assert sorted(said.values()) == ["rank 0 answers", "rank 1 answers"]
    # Each in its own pod, so the caller reached them through the pods' network.
    assert len({address.rpartition(":")[0] for address in said}) == 2
    assert {address.rpartition(":")[0] for address in said} <= pods
    assert any(line.startswith("the Service: rank ") for line in lines)
    # Two pods have one number for the port, so that one slice holds both.
    assert len({address.rpartition(":")[2] for address in (first, second)}) == 1
    until(lambda: not served() and not services(node, namespace), "the Service is gone with the job's end", 60)


def services(node: Cluster, namespace: str) -> list[str]:
    found = [item["metadata"]["name"] for item in node.get("services", "-n", namespace)["items"]]
    return [name for name in found if name == f"{NAME}-engine"]
