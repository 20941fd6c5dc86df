"""The operator's rights, tried as the chart's own service account: each is used, and none is missing.

The API server's audit log tells what the operator asked for in a job's whole life. `pytest -s` prints the table.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import cache
from cluster.handle import Cluster, KubectlError
from helm_kit import CHART, Release
from operator_kit import Head, Operator, children, found, job, run_head, token, until

from dljob.reconcile.state import names

HEAD = "127.0.52.1"

RIGHTS: list[dict[str, Any]] = yaml.safe_load((CHART / "files" / "rights.yaml").read_text())
Right = tuple[str, str, str]
"""(verb, group, resource)."""
EVERYWHERE, HERE, OF_RELEASE = "Cluster", "", "Release"
"""Where a rule holds: for what has no namespace, in the namespaces that are served, in the release's own."""


def granted(scope: str, *where: str) -> dict[Right, str]:
    """What the chart gives in a scope, there, and what each right is for."""
    return {
        (verb, group, resource): why
        for rule in RIGHTS
        if rule.get("scope", "") in where and rule.get("only", scope) == scope
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb, why in rule["verbs"].items()
    }


GRANTED = granted("Cluster", EVERYWHERE, HERE, OF_RELEASE)
NODES: Right = ("get", "", "nodes")
"""Of the Cluster scope alone: elsewhere it is asked once in vain, and what stands on the pods must do."""
FINALIZERS = ("update", "dljob.io", "dljobs/finalizers")
"""No request of its own: the API server asks for it when a child is made that blocks its owner's deletion."""
EVERYBODY = {("create", "authentication.k8s.io", "selfsubjectreviews")}
EVERYBODY |= {
    ("create", "authorization.k8s.io", kind) for kind in ("selfsubjectaccessreviews", "selfsubjectrulesreviews")
}
"""What every account may."""
FORBIDDEN = (
    *(("get", "leases.coordination.k8s.io"), ("update", "leases.coordination.k8s.io")),
    *(("get", "secrets"), ("list", "secrets"), ("watch", "secrets"), ("update", "secrets"), ("delete", "secrets")),
    *(
        ("create", "pods"),
        ("create", "pods/exec"),
        ("create", "pods/attach"),
        ("get", "pods/log"),
        ("get", "pods/proxy"),
    ),
    *(("create", "pods/portforward"), ("update", "pods/ephemeralcontainers"), ("create", "pods/eviction")),
    *(("list", "configmaps"), ("watch", "configmaps"), ("update", "configmaps"), ("deletecollection", "configmaps")),
    *(("patch", "nodes"), ("update", "nodes"), ("delete", "nodes"), ("get", "nodes/proxy")),
    *(("create", "serviceaccounts/token"), ("impersonate", "users"), ("impersonate", "serviceaccounts")),
    *(("create", "roles.rbac.authorization.k8s.io"), ("bind", "clusterroles.rbac.authorization.k8s.io")),
    *(("escalate", "clusterroles.rbac.authorization.k8s.io"), ("create", "dljobs.dljob.io")),
    *(("update", "dljobs.dljob.io"), ("deletecollection", "dljobs.dljob.io"), ("deletecollection", "pods")),
    *(("patch", "rayclusters.ray.io/status"), ("create", "rayjobs.ray.io"), ("create", "deployments.apps")),
    *(("create", "persistentvolumes"), ("create", "mutatingwebhookconfigurations.admissionregistration.k8s.io")),
    *(("get", "customresourcedefinitions.apiextensions.k8s.io"), ("create", "namespaces")),
)
IDLE_S = 20.0
"""Seconds in which the requests of an idle pair are counted; a minute has a look at the Leases of others."""
# The count of an Event is written once a minute otherwise.
AT_ONCE = (
    "import dljob_operator.controller.events as e; e.COUNT_SECONDS = 0.0; from dljob_operator.main import main; main()"
)


@pytest.fixture
def namespace(plane: Cluster) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(f"rights-{uuid.uuid4().hex[:6]}")
        plane.kubectl("create", "namespace", made[-1])
        return made[-1]

    yield make
    for name in made:
        plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def release(plane: Cluster, namespace: Callable[[], str]) -> Iterator[Release]:
    cache.program("helm")
    made = Release(plane, namespace())
    yield made
    made.helm("uninstall", made.name, "--ignore-not-found")


def account(release: Release, folder: Path) -> Cluster:
    """The cluster, as the chart's service account sees it."""
    words = release.cluster.kubectl("create", "token", release.name, "-n", release.namespace, "--duration=1h").strip()
    config: dict[str, Any] = yaml.safe_load(release.cluster.kubeconfig.read_text())
    config["users"] = [{"name": one["name"], "user": {"token": words}} for one in config["users"]]
    made = folder / "kubeconfig"
    made.write_text(yaml.safe_dump(config))
    return Cluster(made)


class Life:
    """What a job can go through, in one namespace."""

    def __init__(self, plane: Cluster, namespace: str, head: Head) -> None:
        self.plane, self.namespace, self.head = plane, namespace, head

    def status(self, name: str) -> dict[str, Any]:
        return found(self.plane, "dljob", name, self.namespace).get("status", {})

    def apply(self, name: str, **spec: Any) -> str:
        """A job; its uid."""
        self.plane.apply({**job(name, **spec), "metadata": {"name": name, "namespace": self.namespace}})
        return found(self.plane, "dljob", name, self.namespace)["metadata"]["uid"]

    def begin(self, name: str, uid: str, attempt: int = 1) -> str:
        """Its RayCluster is made and its head comes up; the RayCluster's name."""

        cluster = names.cluster_name(name, uid, attempt)
        there = lambda: self.status(name).get("rayCluster", {}).get("uid") and self._made(cluster)  # noqa: E731
        until(there, f"{name} has the RayCluster of attempt {attempt}")
        self.head.do(lambda: self._renew(token(uid, cluster), attempt))
        before = len(self.head.stub.posted)
        run_head(self.plane, cluster, self.head.ip, self.namespace)
        until(lambda: len(self.head.stub.posted) > before, f"attempt {attempt} of {name} is submitted")
        self.say(uid, 2)
        until(lambda: self.status(name).get("phase") == "Running", f"{name} runs")
        return cluster

    def _made(self, cluster: str) -> bool:
        return bool(found(self.plane, "raycluster", cluster, self.namespace))

    def _renew(self, word: str, attempt: int) -> None:
        stub = self.head.stub
        stub.token, stub.session = word, f"session_{attempt}"
        stub.jobs.clear()
        stub.snapshots.clear()

    def say(self, uid: str, ready: int, phase: str = "Running", **more: Any) -> None:
        """PrimeMaster says how many of its two ranks are ready."""
        role = {
            "name": "worker",
            "desired": 2,
            "ready": ready,
            "running": ready,
            "succeeded": 0,
            "failed": 0,
            "restarts": 0,
        }
        units = {"units": 1, "ready": 1, "pending": 0, "notReady": []}
        news = {"phase": phase, "epoch": 1, "roles": [role], "placement": units, **more}
        self.head.do(lambda: self.head.stub.say(uid.replace("-", ""), **news))

    def end(self, name: str, uid: str) -> None:
        """All drivers end well."""
        self.head.do(lambda: self.head.stub.tails.update({"worker/0": "the last line\n"}))
        self.say(uid, 2, "Succeeded", reason="Completed", message="all drivers ended well")


def live(life: Life) -> None:
    """A job from its creation over faults and orders to its end and the end of its days; one that runs elsewhere."""
    plane, namespace = life.plane, life.namespace
    group = {"name": "cpu", "cpu": "1", "template": {"spec": {"terminationGracePeriodSeconds": 1}}}
    roles = [{**job("one")["spec"]["roles"][0], "ports": [{"name": "http"}], "service": True}]
    spec = {"ttlSecondsAfterFinished": 1, "nodeGroups": [group], "networkPolicy": {"enabled": True}, "roles": roles}
    uid = life.apply("one", **spec)
    cluster = life.begin("one", uid)
    _service(life, "one", uid, cluster)
    # Pods are told what they hold.
    (pod,) = plane.get("pods", "-n", namespace, "-l", f"ray.io/cluster={cluster},ray.io/node-type=head")["items"]
    place = {"pod": pod["metadata"]["name"], "node": "n1", "units": ["worker-0"], "ranks": "worker/0"}
    life.head.do(lambda: life.head.stub.places.update({uid.replace("-", ""): {"version": 2, "nodes": [place]}}))
    for ready in (1, 2, 1, 2):  # an Event that happens again is counted
        life.say(uid, ready)
        until(lambda ready=ready: life.status("one")["rolesReady"] == f"{ready}/2", f"{ready} are ready")
    until(lambda: held(plane, namespace, pod), "the pod says what it holds")
    # An order by annotation; a plan that somebody took away.
    plane.kubectl("annotate", "dljob", "one", "-n", namespace, "dljob.io/restart=2027-01-01T00:00:00Z")
    until(lambda: life.head.stub.commands, "the restart is ordered")
    plane.kubectl("annotate", "raycluster", cluster, "-n", namespace, "dljob.io/placement-plan-hash-")
    told = lambda: found(plane, "raycluster", cluster, namespace)["metadata"]["annotations"]  # noqa: E731
    until(lambda: "dljob.io/placement-plan-hash" in told(), "the plan is told again")
    # A Kubernetes node is bad: its pod leaves it, and by force, since it has no kubelet.
    _bad_node(life, "one", cluster)
    # Its RayCluster is lost, and the next attempt ends well; it finds what an operator made that then died.
    policy = found(plane, "networkpolicy", names.network_policy(cluster), namespace)
    left = {**meta_of(policy), "name": names.network_policy(names.cluster_name("one", uid, 2))}
    plane.apply({**policy, "metadata": left})
    plane.kubectl("delete", "raycluster", cluster, "-n", namespace)
    life.begin("one", uid, 2)
    assert not found(plane, "networkpolicy", names.network_policy(cluster), namespace), "the second attempt deletes it"
    life.end("one", uid)
    until(lambda: not found(plane, "dljob", "one", namespace), "its days are over")
    until(lambda: not children(plane, uid, namespace), "nothing of it is left")
    _on_another(life)


def _service(life: Life, name: str, uid: str, cluster: str) -> None:
    """A rank is ready, and is no longer: its address comes to the Service and goes."""
    plane, namespace = life.plane, life.namespace
    workers = ("pods", "-n", namespace, "-l", f"ray.io/cluster={cluster},ray.io/node-type=worker")
    (pod,) = until(lambda: plane.get(*workers)["items"], "the worker is made")
    # A slice may hold no address of the loopback, such as the head's.
    address = json.dumps({"status": {"podIP": "10.77.0.1", "podIPs": [{"ip": "10.77.0.1"}]}})
    worker = ("pod", pod["metadata"]["name"], "-n", namespace)
    plane.kubectl("patch", *worker, "--subresource=status", "--type=merge", "-p", address)

    def served() -> list[str]:
        # None as yet, while the Service is being made.
        found = plane.get("endpointslices", "-n", namespace, "-l", f"kubernetes.io/service-name={name}-worker")["items"]
        return [one["addresses"][0] for body in found for one in body["endpoints"] or ()]

    rank = {"rank": 0, "incarnation": 1, "addresses": {"http": "10.77.0.1:20000"}}
    for mark, ranks in enumerate(([rank], [])):
        table = {uid.replace("-", ""): {"worker": ranks}}
        life.head.do(lambda table=table: life.head.stub.servers.update(table))
        life.say(uid, 2, services={"worker": mark + 1})
        until(lambda ranks=ranks: served() == ["10.77.0.1"] * len(ranks), f"{len(ranks)} are in the Service")


def _bad_node(life: Life, name: str, cluster: str) -> None:
    plane, namespace = life.plane, life.namespace
    assert plane.run
    audit = plane.run / "log" / "audit"
    before = audit.stat().st_size
    workers = ("pods", "-n", namespace, "-l", f"ray.io/cluster={cluster},ray.io/node-type=worker")
    (pod,) = until(lambda: plane.get(*workers)["items"], "the worker is made")
    meta = {"name": pod["metadata"]["name"], "namespace": namespace}
    # A name of its own: Kubernetes takes away the pods of a node that it has missed for 40 s, in an earlier test too.
    bad = f"bad-of-{namespace}"
    target = {"apiVersion": "v1", "kind": "Node", "name": bad}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    path = f"/api/v1/namespaces/{namespace}/pods/{meta['name']}/binding"
    plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    plane.kubectl("annotate", "dljob", name, "-n", namespace, f"dljob.io/exclude-nodes={bad}")
    until(lambda: found(plane, "pod", meta["name"], namespace)["metadata"].get("deletionTimestamp"), "it is to go")
    asked = lambda: b'"resource":"nodes"' in audit.read_bytes()[before:]  # noqa: E731
    until(asked, "somebody looks whether its node is lost", 30)
    # The next attempt waits for whoever may still write; where nodes may not be looked at, that is for a minute.
    plane.kubectl("delete", "pod", meta["name"], "-n", namespace, "--force", "--grace-period=0", "--ignore-not-found")


def _on_another(life: Life) -> None:
    """A job on a RayCluster that KubeRay is slow to look at, and that is the job's no more than its end is."""
    plane, namespace = life.plane, life.namespace
    life.head.do(lambda: life._renew("", 9))
    container = {
        "name": "ray-head",
        "image": "example.test/ray:1",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    group = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    meta = {"name": "shared", "namespace": namespace}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": group}
    plane.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec})
    # What KubeRay does not manage is silent, so the operator reads why in the Events.
    silent = {"managedBy": "kueue.x-k8s.io/multikueue", **spec}
    plane.apply(
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {**meta, "name": "silent"}, "spec": silent}
    )
    for name, where in (("two", "shared"), ("three", "silent")):
        body = job(name, rayClusterRef={"name": where})
        del body["spec"]["image"]
        plane.apply({**body, "metadata": {"name": name, "namespace": namespace}})
    before = len(life.head.stub.posted)
    run_head(plane, "shared", life.head.ip, namespace)
    until(lambda: len(life.head.stub.posted) > before, "the launcher is submitted")
    uid = found(plane, "dljob", "two", namespace)["metadata"]["uid"]
    life.say(uid, 2)
    until(lambda: life.status("two").get("phase") == "Running", "it runs")
    plane.kubectl("delete", "dljob", "two", "-n", namespace, "--wait=false")
    until(lambda: [one for one in life.head.stub.commands if one["kind"] == "stop"], "it is stopped")
    life.say(uid, 2, "Failed", reason="Stopped")
    until(lambda: not found(plane, "dljob", "two", namespace), "it is gone")


def meta_of(body: dict[str, Any]) -> dict[str, Any]:
    """What somebody who makes such an object says of it."""
    return {key: body["metadata"][key] for key in ("namespace", "labels", "ownerReferences")}


def held(plane: Cluster, namespace: str, pod: dict[str, Any]) -> bool:
    body = found(plane, "pod", pod["metadata"]["name"], namespace)
    return body["metadata"].get("annotations", {}).get("dljob.io/ranks") == "worker/0"


def audited(plane: Cluster, who: str) -> Iterator[tuple[Right, bool]]:
    """What an account asked for, and whether it may: a namespace that is on its way out answers 403 to all."""
    assert plane.run
    for line in (plane.run / "log" / "audit").read_text().splitlines():
        entry = json.loads(line)
        ref = entry.get("objectRef")
        if entry["user"]["username"] != who or not ref:
            continue
        resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
        decision = entry["annotations"]["authorization.k8s.io/decision"]
        yield (entry["verb"], ref.get("apiGroup", ""), resource), decision == "allow"


def table(counts: Counter[Right]) -> str:
    """Rights, how often each was used, and what for."""
    rows = [f"| {'right':52} | used | what for |", f"| {'-' * 52} | ---- | --- |"]
    for (verb, group, resource), why in GRANTED.items():
        right = (verb, group, resource)
        used = "asked" if right == FINALIZERS else str(counts[right])
        rows.append(f"| {verb + ' ' + resource + ('.' + group if group else ''):52} | {used:>5} | {why} |")
    return "\n".join(rows)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scope", ["Cluster", "Namespaced"])
def test_every_right_is_used_and_none_is_missing(
    release: Release, namespace: Callable[[], str], head: Head, tmp_path: Path, scope: str
) -> None:
    plane, where = release.cluster, namespace()
    there = {"rbac": {"scope": scope}, "watchNamespaces": [where] if scope == "Namespaced" else []}
    release.install(**there)
    flags = [flag for flag in release.arguments() if flag.startswith("--namespace")]
    flags += ["--leader-elect", f"--leader-elect-resource-name={release.name}"]
    flags += [f"--leader-elect-resource-namespace={release.namespace}"]
    operator = Operator(account(release, tmp_path), tmp_path, flags, program=("-c", AT_ONCE))
    try:
        operator.start()
        live(Life(plane, where, head))
        who = f"system:serviceaccount:{release.namespace}:{release.name}"

        def all_used() -> bool:
            return granted(scope, EVERYWHERE, HERE, OF_RELEASE).keys() - {
                right for right, _ in audited(plane, who)
            } <= {FINALIZERS}

        until(all_used, "the silent RayCluster's Events are read", 30)
    finally:
        operator.stop()
        asked = list(audited(plane, f"system:serviceaccount:{release.namespace}:{release.name}"))
        print(f"\n{scope}\n{table(Counter(right for right, _ in asked))}")
    refused = {right for right, allowed in asked if not allowed}
    assert refused == (set() if scope == "Cluster" else {NODES}), "nothing was refused"
    # An earlier test's namespace may be on its way out, where nothing more can be told.
    assert not [said for said in operator.log.read_text().splitlines() if "cannot" in said and "terminated" not in said]


def test_an_idle_pair_asks_the_api_server_for_at_most_30_requests_a_minute(
    release: Release, namespace: Callable[[], str], tmp_path: Path
) -> None:
    """Two replicas with the chart's flags; they look for other releases after 8, 24 and 56 s, then every 120 s."""
    plane, space = release.cluster, namespace()
    release.install()
    assert plane.run
    audit = plane.run / "log" / "audit"
    flags = [flag for flag in release.arguments() if flag.startswith(("--leader-elect", "--namespace"))]
    as_chart = account(release, tmp_path)
    pair = [Operator(as_chart, tmp_path / name, flags) for name in ("first", "second")]
    bodies = [{**job(f"j{n}", suspend=True), "metadata": {"name": f"j{n}", "namespace": space}} for n in range(62)]
    try:
        for operator in pair:
            operator.start()
        started = time.monotonic()
        plane.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
        phases = ("get", "dljobs", "-n", space, "-o", "jsonpath={.items[*].status.phase}")
        until(lambda: plane.kubectl(*phases).split() == ["Suspended"] * 62, "all are suspended")
        time.sleep(max(5.0, started + 26.0 - time.monotonic()))
        before = audit.stat().st_size
        time.sleep(IDLE_S)
        with audit.open("rb") as log:
            log.seek(before)
            entries = [json.loads(line) for line in log.read().splitlines() if line.endswith(b"}")]
        assert {operator.health()["role"] for operator in pair} == {"leader", "standby"}
    finally:
        for operator in reversed(pair):
            operator.stop()
    who = f"system:serviceaccount:{release.namespace}:{release.name}"
    requests = {entry["auditID"]: entry for entry in entries if entry["user"]["username"] == who}
    counts = Counter(f"{entry['verb']} {entry['objectRef']['resource']}" for entry in requests.values())
    print(f"\n{IDLE_S:g} s: {counts}")
    assert counts["update leases"] > IDLE_S / 4, "the Lease is renewed"
    assert counts["get leases"] == 0, "the standby watches it"
    # One look of each replica may fall into the window: 24 renewals and the six lists of two looks are a minute's 30.
    renewals = counts["update leases"]
    assert renewals <= 24 * IDLE_S / 60, counts
    assert counts.total() - renewals <= 6, counts


def may(release: Release, namespace: str) -> set[Right]:
    """All that the account may do in a namespace, as the API server resolves it."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    who = f"--as=system:serviceaccount:{release.namespace}:{release.name}"
    groups = [f"--as-group=system:{one}" for one in ("authenticated", "serviceaccounts")]
    said = release.cluster.kubectl(
        "create", "--validate=false", "-f", "-", "-o", "json", who, *groups, stdin=json.dumps(review)
    )
    return {
        (verb, group, resource)
        for rule in json.loads(said)["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    } - EVERYBODY


def test_the_operator_may_do_what_the_table_of_rights_says_and_nothing_else(
    release: Release, namespace: Callable[[], str]
) -> None:
    here, elsewhere = namespace(), namespace()
    release.install(rbac={"scope": "Namespaced"}, watchNamespaces=[here])
    assert may(release, here) == set(granted("Namespaced", EVERYWHERE, HERE))
    assert may(release, release.namespace) == set(granted("Namespaced", EVERYWHERE, OF_RELEASE))
    assert may(release, elsewhere) == set(granted("Namespaced", EVERYWHERE))
    release.helm("upgrade", release.name, str(CHART), rbac={"scope": "Cluster"})
    assert may(release, elsewhere) == set(granted("Cluster", EVERYWHERE, HERE))
    assert may(release, release.namespace) == set(GRANTED)
    for verb, what in FORBIDDEN:
        assert not release.may(verb, what, here), f"{verb} {what}"


def test_children_need_the_right_to_the_finalizers_of_their_owner(
    release: Release, namespace: Callable[[], str]
) -> None:
    where = namespace()
    release.install()
    release.cluster.apply({**job("owner"), "metadata": {"name": "owner", "namespace": where}})
    uid = found(release.cluster, "dljob", "owner", where)["metadata"]["uid"]
    owner = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "name": "owner", "uid": uid}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    meta = {"name": "child", "namespace": where, "ownerReferences": [owner]}
    child = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    make = (
        "create",
        "--validate=false",
        "-f",
        "-",
        "--dry-run=server",
        f"--as=system:serviceaccount:{release.namespace}:{release.name}",
    )
    release.cluster.kubectl(*make, stdin=child)
    rules = release.cluster.get("clusterrole", "dljob")["rules"]
    lean = [rule for rule in rules if rule["resources"] != ["dljobs/finalizers"]]
    patch = json.dumps({"rules": lean})
    release.cluster.kubectl("patch", "clusterrole", "dljob", "--type=merge", "-p", patch)

    def refused() -> bool:
        try:
            release.cluster.kubectl(*make, stdin=child)
        except KubectlError as error:
            return "blockOwnerDeletion" in str(error)
        return False

    until(refused, "the API server asks for the right", 15)
