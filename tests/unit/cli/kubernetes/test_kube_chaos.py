"""`dljob chaos -k` on a cluster in memory: what it does to pods, which rights it needs, what it undoes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from fake_kube import HEAD, FakeKube, add_head, add_job

from dljob.api.kubernetes import chaos
from dljob.kube.api import DLJOBS, NODES, PODS, ApiError, Response
from dljob.runtime.faults import injector

Json = dict[str, Any]
LABELS = {"app.kubernetes.io/name": "dljob", "app.kubernetes.io/component": "operator"}


class Socket:
    """The stream of one `exec`: it answers an order as `in_pod` does, and ends when it is told to."""

    def __init__(self, cluster: Cluster, order: Json) -> None:
        self._cluster = cluster
        self._waiting = [b"\x01" + json.dumps(cluster.answer(order)).encode() + b"\n", b"\x02a warning"]
        if order["do"] == "kill" or order.get("seconds") is None:
            self._waiting.append(b"\x03" + b'{"status": "Success"}')
        self.ended = False

    async def receive(self) -> aiohttp.WSMessage:
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, self._waiting.pop(0), None)

    async def send_bytes(self, data: bytes) -> None:
        assert data == b"\x00\n"
        self.ended = True
        self._waiting.append(b"\x03" + b'{"status": "Success"}')

    async def close(self) -> None:
        pass


class Cluster:
    """A job of two ranks on two pods, each on its Kubernetes node; each fault is recovered from at once."""

    def __init__(self, kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kube = kube
        self.did: list[tuple[Any, ...]] = []
        self.denied: set[str] = set()
        self.faults: list[Json] = []
        self.phase = "Running"
        self.sockets: list[Socket] = []
        self.wrong = ""
        self.master_in = HEAD
        role = {"name": "a", "replicas": 2, "entrypoint": {"class": "m.A"}}
        job = add_job(kube, phase="Running", submissionId="s", attempt=1)
        kube.put(DLJOBS, {**job, "spec": {"roles": [role]}})
        add_head(kube)
        for n in (0, 1):
            spec = {"nodeName": f"k8s-{n}", "containers": [{"name": "ray-worker", "image": "i"}]}
            kube.put(PODS, {"metadata": {"name": f"pod-{n}"}, "spec": spec})
            kube.put(NODES, {"metadata": {"name": f"k8s-{n}"}, "spec": {}}, "")
        kube.put(PODS, {"metadata": {"name": "dljob-1", "labels": LABELS}, "spec": {}}, "system")
        kube.head |= {
            "status": lambda _: self.status(),
            "events": lambda _: {"events": []},
            "placement": lambda _: {
                "nodes": [{"node": f"n{n}", "pod": f"pod-{n}"} for n in (0, 1)],
                "master": {"node": "h", "pod": self.master_in, "pid": 7},
            },
        }
        kube.calls[chaos.REVIEWS] = self.review
        monkeypatch.setattr(kube.transport, "socket", self.socket, raising=False)
        monkeypatch.setattr(kube, "evict", self.evict, raising=False)
        monkeypatch.setattr(kube, "delete", self.delete)
        monkeypatch.setattr(kube, "proxy_post", self.post, raising=False)
        monkeypatch.setattr(chaos, "LOOK_S", 0.01)
        monkeypatch.setattr(injector, "TOLD_S", 1.0)

    def status(self) -> Json:
        ranks = [
            {"role": "a", "rank": n, "pid": 100 + n, "incarnation": 3, "phase": "Ready", "node": f"n{n}"}
            for n in (0, 1)
        ]
        return {
            "version": 1,
            "phase": self.phase,
            "ranks": ranks,
            "units": [{"name": f"a/{n}", "node": f"n{n}"} for n in (0, 1)],
            "roles": [{"name": "a", "desired": 2, "ready": 2, "succeeded": 0}],
            "recentFaults": list(self.faults),
        }

    def told(self, target: str, cause: str = "Killed", level: str = "Process") -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        row = {"reason": cause, "target": target, "level": level, "detectedAt": at, "recoveredAt": at}
        self.faults.append(row)

    def review(self, body: Json) -> Json:
        asked = body["spec"]["resourceAttributes"]
        sub = f"/{asked['subresource']}" if asked["subresource"] else ""
        return {"status": {"allowed": f"{asked['verb']} {asked['resource']}{sub}" not in self.denied}}

    def answer(self, order: Json) -> Json:
        if order["do"] == "kill" and not order.get("pids") and not order.get("title") and not order["all"]:
            return {"hit": [], "wrong": "", "time": datetime.now(UTC).timestamp()}
        return {"hit": [], "wrong": self.wrong, "time": 0.0}

    async def socket(self, path: str, query: list[tuple[str, str]]) -> Socket:
        order = json.loads([value for name, value in query if name == "command"][-1])
        made = Socket(self, order)
        pod, container = path.split("/")[-2], dict(query)["container"]
        if order.get("pids") or order.get("title") or order.get("all") or order["do"] == "end":
            given = {key: value for key, value in order.items() if value and key != "do"}
            self.did.append((order["do"], pod, container, given))
            self.sockets.append(made)
            self.told("master" if order.get("pids") == [7] else "a/0")
        return made

    async def evict(self, pod: str, namespace: str, grace: int | None) -> None:
        self.did.append(("evict", pod, namespace, grace, self.kube.one(NODES, "k8s-0", "")["spec"]))
        self.told("a/0", "Preempted")

    async def delete(self, _resource: Any, name: str, namespace: str, **options: Any) -> None:
        self.did.append(("delete", name, namespace, options))
        self.told(f"a/{name[-1]}", "Preempted")

    async def post(self, _pod: str, _port: int, path: str, _namespace: str, body: Json, **_: Any) -> Response:
        self.did.append((path.rsplit("/", 1)[-1], body["kind"], body["target"], body["by"].split(":")[0]))
        return Response(202, b"{}")


@pytest.fixture
def cluster(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(kube, monkeypatch)


@pytest.fixture
def inject(cluster, dljob, tmp_path):
    def run(*faults: str, yes: bool = True) -> tuple[int, str, str]:
        file = tmp_path / "faults.yaml"
        file.write_text("".join(f"- {{when: {{time: 0}}, {fault}}}\n" for fault in faults))
        return dljob("chaos", "hello", str(file), "-k", "-o", "json", *(["--yes"] if yes else []))

    return run


def test_ranks_of_pods_get_signals_in_their_pods(cluster, inject):
    code, out, err = inject("target: a, fault: kill, expect: {cause: Killed, level: Process}")
    assert code == 0, err
    assert sorted(cluster.did) == [
        ("kill", "pod-0", "ray-worker", {"pids": [100], "factor": 2}),
        ("kill", "pod-1", "ray-worker", {"pids": [101], "factor": 2}),
    ]
    told = json.loads(out)
    assert told["faults"][0]["incidents"]
    assert "fault: kill a after 0 s\n" in err


def test_memory_is_told_of_before_the_kill(cluster, inject):
    assert inject("target: a/0, fault: oom")[0] == 0
    assert [row[0] for row in cluster.did] == ["commands", "kill"]
    assert cluster.did[0] == ("commands", "cause", "a/0.3", "Out of memory")


def test_a_stop_is_held_and_ended_with_the_command(cluster, inject):
    assert inject("target: node/0, fault: stop, seconds: 1")[0] == 0
    assert cluster.did == [("stop", "pod-0", "ray-worker", {"all": True, "seconds": 1, "factor": 2})]
    assert [one.ended for one in cluster.sockets] == [True]


@pytest.mark.parametrize(("pod", "container"), [(HEAD, "ray-head"), ("pod-1", "ray-worker")])
def test_the_master_that_commands_is_killed_wherever_it_is(cluster, inject, pod, container):
    cluster.master_in = pod
    assert inject("target: master, fault: kill")[0] == 0
    assert cluster.did == [("kill", pod, container, {"pids": [7], "factor": 2})]


def test_a_raylet_is_found_by_its_name_in_the_pod(cluster, inject):
    assert inject("target: node/1, fault: kill")[0] == 0
    assert cluster.did == [("kill", "pod-1", "ray-worker", {"title": "raylet", "factor": 2})]
    cluster.wrong = "2 processes are called raylet"
    code, _, err = inject("target: node/1, fault: kill")
    assert code == 4
    assert "kill node/1 was not done: in pod pod-1 2 processes are called raylet" in err


def test_a_leaving_node_is_cordoned_only_while_the_command_lasts(cluster, inject):
    code, _, err = inject("target: node/0, fault: leave, seconds: 1")
    assert code == 0
    assert cluster.did == [("evict", "pod-0", "team", 1, {"unschedulable": True})]
    assert "cordoned Kubernetes node k8s-0 until this command ends\n" in err
    after = cluster.kube.one(NODES, "k8s-0", "")
    assert (after["spec"], after["metadata"]["annotations"]) == ({}, {})


def test_a_cordon_that_cannot_be_taken_back_is_told_with_what_to_do(cluster, inject, monkeypatch):
    async def evict(*_: Any) -> None:
        cluster.kube.forbidden.add("patch nodes")
        cluster.told("a/0", "Preempted")

    monkeypatch.setattr(cluster.kube, "evict", evict)
    _, _, err = inject("target: node/0, fault: leave, seconds: 1")
    assert "node k8s-0 is still cordoned: nodes is forbidden" in err
    assert "kubectl uncordon k8s-0" in err


def test_a_cordon_of_somebody_else_stays(cluster, inject):
    cluster.kube.put(NODES, {"metadata": {"name": "k8s-0"}, "spec": {"unschedulable": True}}, "")
    assert inject("target: node/0, fault: leave, seconds: 1")[0] == 0
    assert cluster.kube.one(NODES, "k8s-0", "")["spec"] == {"unschedulable": True}


def test_a_pod_is_evicted_or_deleted_without_a_cordon(cluster, inject):
    assert inject("target: pod/0, fault: leave, seconds: 1", "target: pod/1, fault: kill")[0] == 0
    assert cluster.did == [("evict", "pod-0", "team", 1, {}), ("delete", "pod-1", "team", {"grace": 0})]


def test_the_operators_pods_are_deleted_wherever_they_are(cluster, inject):
    assert inject("target: operator, fault: kill")[0] == 0
    assert cluster.did == [("delete", "dljob-1", "system", {"grace": 0})]
    del cluster.kube.objects["pods", "system", "dljob-1"]
    code, _, err = inject("target: operator, fault: kill")
    assert code == 4
    assert "kill operator was not done: no pod of the operator is seen" in err


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"running": {}}, ""),
        ({"terminated": {"reason": "Error", "message": "no qdisc"}}, "which is to cut its network, ended: no qdisc"),
        ({"waiting": {"reason": "ErrImagePull", "message": "gone"}}, "does not start: ErrImagePull: gone"),
    ],
)
def test_a_network_is_cut_by_an_ephemeral_container(cluster, inject, monkeypatch, state, words):
    patch = cluster.kube.patch

    async def add(resource: Any, name: str, namespace: str | None, body: Json, **options: Any) -> Json:
        (made,) = body["spec"]["ephemeralContainers"]
        assert options == {"kind": "strategic", "sub": "ephemeralcontainers"}
        assert (made["image"], made["securityContext"]["capabilities"]["add"]) == ("i", ["NET_ADMIN"])
        assert json.loads(made["command"][-1]) == {"do": "cut", "seconds": 1}
        for one in ({"waiting": {"reason": "ContainerCreating"}}, state):
            rows = [{"name": made["name"], "state": one}]
            await patch(resource, name, namespace, {"metadata": {}, "status": {"ephemeralContainerStatuses": rows}})
        return {}

    monkeypatch.setattr(cluster.kube, "patch", add)
    got, _, err = inject("target: node/0, fault: cut, seconds: 1")
    assert (got, words in err) == (4 if words else 0, True), err
    assert [row[:2] for row in cluster.did] == [("end", "pod-0")]


def test_a_lacking_right_is_named_and_nothing_is_injected(cluster, inject):
    cluster.denied = {"create pods/exec", "patch nodes"}
    code, _, err = inject("target: a/0, fault: kill", "target: node/0, fault: leave, seconds: 1")
    assert (code, cluster.did) == (4, [])
    assert "create pods/exec in namespace team (for kill a/0)" in err
    assert "patch nodes in the cluster (for leave node/0 for 1 s)" in err
    assert "403" in err


def test_a_refusal_in_the_middle_names_the_fault(cluster, inject, monkeypatch):
    async def refuse(*_: Any, **__: Any) -> None:
        raise ApiError(403, "Forbidden", 'pods "pod-0" is forbidden: User "u" cannot create resource "pods/eviction"')

    monkeypatch.setattr(cluster.kube, "evict", refuse)
    code, _, err = inject("target: pod/0, fault: leave, seconds: 1")
    assert code == 4
    assert "leave pod/0 was not done: pods " in err
    assert 'cannot create resource "pods/eviction"' in err


def test_without_a_terminal_and_without_yes_nothing_is_done(cluster, inject, monkeypatch):
    class Terminal:
        def __init__(self, *lines: str) -> None:
            self.lines = list(lines)

        def isatty(self) -> bool:
            return bool(self.lines)

        def readline(self) -> str:
            return self.lines.pop(0)

    monkeypatch.setattr("sys.stdin", Terminal())
    code, _, err = inject("target: a/0, fault: kill", yes=False)
    assert (code, cluster.did) == (2, [])
    assert "kill a/0 after 0 s\n" in err
    assert "not confirmed: inject 1 fault into job hello in namespace team" in err
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert inject("target: a/0, fault: kill", yes=False)[0] == 2
    assert cluster.did == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert inject("target: a/0, fault: kill", yes=False)[0] == 0


def test_wrong_files_and_jobs_are_told_before_the_question(cluster, inject, dljob):
    code, _, err = inject("target: b/0, fault: kill")
    assert code == 2
    assert "faults.yaml:1:29: [0].target: there is no role 'b' in job hello" in err
    code, _, err = inject("target: queue/x, fault: kill")
    assert (code, "the keeper of a queue cannot be reached in a pod" in err) == (2, True)
    code, _, err = dljob("chaos", "hallo", "faults.yaml", "-k")
    assert (code, "no job 'hallo' in namespace team" in err) == (3, True)
    cluster.kube.update("hello", phase="Succeeded")
    code, _, err = inject("target: a/0, fault: kill")
    assert (code, "job hello in namespace team has ended: Succeeded" in err) == (3, True)


def test_a_cluster_that_is_gone_in_the_middle_ends_the_command(cluster, inject, monkeypatch):
    monkeypatch.setattr("dljob.api.kubernetes.jobs.PATIENCE_S", 0.05)
    kill = cluster.answer

    def go(order: Json) -> Json:
        if order.get("pids"):
            cluster.kube.head.pop("status")
        return kill(order)

    monkeypatch.setattr(cluster, "answer", go)
    code, _, err = inject("target: a/0, fault: stop, seconds: 100")
    assert code == 4
    assert "job hello in namespace team has not answered for 0.05 s, faults were injected no further" in err
    assert [one.ended for one in cluster.sockets] == [True]
