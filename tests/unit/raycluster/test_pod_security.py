"""Pods that ask for more of their node than the operator's policy allows are refused, wherever a template says it."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.raycluster.acceptance import refusals
from dljob.raycluster.pod_security import Level, PodPolicy
from dljob.spec.loading.load import parse
from dljob.spec.text.words import path_of

ROLE = {"name": "w", "entrypoint": {"module": "a"}, "resources": {"cpu": "1"}}
AT = "spec.head.template"


def found(policy: PodPolicy | None = None, namespace: str = "team", **spec: Any) -> list[tuple[str, str]]:
    """(path, message) of all that is refused."""
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j", "namespace": namespace}}
    made = parse({**job, "spec": {"roles": [ROLE], **spec}})
    return [(path_of(one.loc), one.message) for one in refusals(made, policy or PodPolicy())]


def paths(template: dict[str, Any], policy: PodPolicy | None = None, namespace: str = "team") -> list[str]:
    return [path for path, _ in found(policy, namespace, head={"template": template})]


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def ray(**container: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "ray-head", **container}])


def context(**context: Any) -> dict[str, Any]:
    return ray(securityContext=context)


RAY = f"{AT}.spec.containers[0]"
CONTEXT = f"{RAY}.securityContext"
FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    (pod(hostNetwork=True), f"{AT}.spec.hostNetwork"),
    (pod(hostPID=True), f"{AT}.spec.hostPID"),
    (pod(hostIPC=True), f"{AT}.spec.hostIPC"),
    (
        pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "root", "hostPath": {"path": "/"}}]),
        f"{AT}.spec.volumes[1].hostPath",
    ),
    (
        pod(
            securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies"}, {"name": "kernel.msgmax", "value": "1"}]}
        ),
        f"{AT}.spec.securityContext.sysctls",
    ),
    (
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        f"{AT}.spec.securityContext.seccompProfile.type",
    ),
    (
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/ray-head": "unconfined"}}},
        f"{AT}.metadata.annotations.container.apparmor.security.beta.kubernetes.io/ray-head",
    ),
    (context(privileged=True), f"{CONTEXT}.privileged"),
    (context(procMount="Unmasked"), f"{CONTEXT}.procMount"),
    (context(windowsOptions={"hostProcess": True}), f"{CONTEXT}.windowsOptions.hostProcess"),
    (context(appArmorProfile={"type": "Unconfined"}), f"{CONTEXT}.appArmorProfile.type"),
    (context(seLinuxOptions={"type": "spc_t"}), f"{CONTEXT}.seLinuxOptions.type"),
    (context(seLinuxOptions={"user": "root"}), f"{CONTEXT}.seLinuxOptions.user"),
    (context(capabilities={"add": ["IPC_LOCK", "SYS_ADMIN"]}), f"{CONTEXT}.capabilities.add"),
    (context(capabilities={"add": "SYS_ADMIN"}), f"{CONTEXT}.capabilities.add"),
    (ray(ports=[{"name": "a", "containerPort": 9000, "hostPort": 9000}]), f"{RAY}.ports[0].hostPort"),
    (
        ray(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}}),
        f"{RAY}.livenessProbe.httpGet.host",
    ),
    (
        ray(lifecycle={"preStop": {"tcpSocket": {"host": "example.org", "port": 80}}}),
        f"{RAY}.lifecycle.preStop.tcpSocket.host",
    ),
    (
        pod(initContainers=[{"name": "i", "image": "x", "securityContext": {"privileged": True}}]),
        f"{AT}.spec.initContainers[0].securityContext.privileged",
    ),
]


@pytest.mark.parametrize(("template", "path"), FORBIDDEN, ids=[path for _, path in FORBIDDEN])
def test_fields_forbidden_by_baseline_are_named_by_path_unless_the_policy_allows_them(
    template: dict[str, Any], path: str
):
    assert paths(template) == [path]
    assert paths(template, PodPolicy("privileged")) == []
    assert paths(template, PodPolicy(exempt=("team",))) == []
    assert paths(template, PodPolicy(exempt=("another",))) == [path]


@pytest.mark.parametrize(
    "template",
    [
        {},
        pod(hostPID=False, hostNetwork=None, volumes=[{"name": "a", "emptyDir": {}}]),
        context(privileged=False, capabilities={"add": ["IPC_LOCK", "CHOWN"]}, procMount="Default"),
        ray(ports=[{"name": "a", "containerPort": 9000, "hostPort": 0}]),
        pod(serviceAccountName="mine", automountServiceAccountToken=True),
        {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/ray-head": "localhost/mine"}}},
    ],
)
def test_templates_allowed_by_baseline_are_accepted(template: dict[str, Any]):
    assert paths(template) == []


def test_templates_of_node_groups_and_of_the_raycluster_are_checked():
    group = {"name": "cpu", "cpu": "4", "template": pod(hostPID=True)}
    assert [path for path, _ in found(nodeGroups=[group])] == ["spec.nodeGroups[0].template.spec.hostPID"]
    over = {"spec": {"headGroupSpec": {"template": pod(hostIPC=True)}}}
    where = "spec.rayClusterTemplate.spec.headGroupSpec.template.spec.hostIPC"
    assert [path for path, _ in found(rayClusterTemplate=over)] == [where]
    over = {"spec": {"headGroupSpec": {"template": pod(containers=[{"name": "side", "image": "x"}])}}}
    (said,) = found(rayClusterTemplate=over, head={"template": context(privileged=True)})
    assert said[0] == f"{CONTEXT}.privileged"
    over = {"spec": {"workerGroupSpecs": [{"groupName": "cpu", "template": pod(hostIPC=True)}]}}
    both = [path for path, _ in found(rayClusterTemplate=over, nodeGroups=[group])]
    where = "spec.rayClusterTemplate.spec.workerGroupSpecs[0].template.spec.hostIPC"
    assert both == ["spec.nodeGroups[0].template.spec.hostPID", where]


RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
}


def test_restricted_wants_a_user_that_is_not_root():
    policy = PodPolicy("restricted")
    good = {"template": pod(securityContext=RESTRICTED)}
    group = {"name": "cpu", "cpu": "4", **good}
    assert found(policy, head=good, nodeGroups=[group]) == []
    wrong = [(path, said.partition(",")[0]) for path, said in found(policy, head=good)]
    assert wrong == [
        ("spec.nodeGroups", f"container {name} does not say runAsNonRoot: true")
        for name in ("dljob-init", "ray-worker")
    ]


def test_what_restricted_misses_is_told_with_the_words_to_write():
    sidecar = {"name": "mine", "image": "x"}
    template = pod(securityContext={"seccompProfile": None}, containers=[sidecar])
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    head = {"template": template}
    made = parse({**job, "spec": {"roles": [ROLE], "head": head}})
    hints = {
        (one.message.partition(",")[0], one.hint.partition(", or ask")[0])
        for one in refusals(made, PodPolicy("restricted"))
        if "container mine" in one.message
    }
    assert hints == {
        (
            "container mine does not say runAsNonRoot: true",
            "write template: {spec: {securityContext: {runAsNonRoot: true, runAsUser: 1000}}} at spec.head",
        ),
        ("container mine has no seccompProfile", "write {type: RuntimeDefault} there"),
        (
            "container mine does not say allowPrivilegeEscalation: false",
            "write false there",
        ),
        ("container mine does not drop ALL capabilities", "write [ALL] there"),
    }


@pytest.mark.parametrize(
    ("pod_context", "container_context", "place", "advice"),
    [
        ({}, {"runAsNonRoot": False}, f"{CONTEXT}.runAsNonRoot", "write true there"),
        (
            {},
            {"seccompProfile": {"type": "Unconfined"}},
            f"{CONTEXT}.seccompProfile.type",
            "write RuntimeDefault there",
        ),
        ({}, {"capabilities": {"drop": ["KILL"]}}, f"{CONTEXT}.capabilities.drop", "write [ALL] there"),
        ({}, {"allowPrivilegeEscalation": True}, f"{CONTEXT}.allowPrivilegeEscalation", "write false there"),
        ({}, {"runAsUser": 0}, f"{CONTEXT}.runAsUser", "leave it out"),
        ({"runAsUser": 0}, {}, f"{AT}.spec.securityContext.runAsUser", "leave it out"),
    ],
)
def test_the_advice_is_about_the_line_that_breaks_the_rule(pod_context, container_context, place, advice):
    whole_pod = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}, **pod_context}
    container = {"name": "ray-head", "securityContext": {**RESTRICTED, **container_context}}
    head = {"template": pod(securityContext=whole_pod, containers=[container])}
    metadata = {"name": "j", "namespace": "team"}
    job = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": metadata}
    findings = refusals(parse({**job, "spec": {"roles": [ROLE], "head": head}}), PodPolicy("restricted"))
    assert (place, advice) in {(path_of(finding.loc), finding.hint.partition(", or ask")[0]) for finding in findings}


def test_restricted_asks_it_of_the_init_container_that_the_operator_adds():
    head = {"template": context(**RESTRICTED)}
    group = {"name": "cpu", "cpu": "4", "template": pod(securityContext=RESTRICTED)}
    ((path, said),) = found(PodPolicy("restricted"), head=head, nodeGroups=[group])
    assert (path, said.partition(",")[0]) == ("spec.head", "container dljob-init does not say runAsNonRoot: true")


@pytest.mark.parametrize(
    ("more", "path", "said"),
    [
        (pod(volumes=[{"name": "n", "nfs": {}}]), "volumes[0].nfs", "volume n is of kind nfs"),
        (context(runAsUser=0), "containers[0].securityContext.runAsUser", "container ray-head runs as user 0"),
        (
            context(allowPrivilegeEscalation=True),
            "containers[0].securityContext.allowPrivilegeEscalation",
            "container ray-head does not say allowPrivilegeEscalation: false",
        ),
        (
            context(capabilities={"drop": ["KILL"]}),
            "containers[0].securityContext.capabilities.drop",
            "container ray-head does not drop ALL capabilities",
        ),
        (
            context(capabilities={"add": ["CHOWN"]}),
            "containers[0].securityContext.capabilities.add",
            "capability CHOWN is none of restricted",
        ),
    ],
)
def test_templates_forbidden_by_restricted_are_named_by_their_path(more: dict[str, Any], path: str, said: str):
    template = {"spec": {"securityContext": RESTRICTED, **more["spec"]}}
    group = {"name": "cpu", "cpu": "4", "template": pod(securityContext=RESTRICTED)}
    ((where, words),) = found(PodPolicy("restricted"), head={"template": template}, nodeGroups=[group])
    assert (where, words.partition(",")[0]) == (f"{AT}.spec.{path}", said)


def test_restricted_allows_a_volume_of_an_image():
    volumes = [{"name": "model", "image": {"reference": "a.example.com/model:1"}}]
    template = pod(securityContext=RESTRICTED, volumes=volumes)
    group = {"name": "cpu", "cpu": "4", "template": pod(securityContext=RESTRICTED)}
    assert found(PodPolicy("restricted"), head={"template": template}, nodeGroups=[group]) == []


def test_a_profile_that_restricted_forbids_is_not_asked_for():
    template = pod(securityContext={**RESTRICTED, "seccompProfile": {"type": "Unconfined"}})
    group = {"name": "cpu", "cpu": "4", "template": pod(securityContext=RESTRICTED)}
    wrong = found(PodPolicy("restricted"), head={"template": template}, nodeGroups=[group])
    assert wrong
    for _, said in wrong:
        assert said.startswith("type is Unconfined, which the operator's jobs.podSecurity=restricted forbids")


def test_restricted_wants_a_seccomp_profile():
    template = pod(securityContext={**RESTRICTED, "seccompProfile": None})
    group = {"name": "cpu", "cpu": "4", "template": pod(securityContext=RESTRICTED)}
    wrong = found(PodPolicy("restricted"), head={"template": template}, nodeGroups=[group])
    assert [said.partition(",")[0] for _, said in wrong] == [
        f"container {name} has no seccompProfile" for name in ("dljob-init", "ray-head")
    ]


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_capabilities_listed_by_the_operator_are_allowed(level: Level):
    head = {"template": context(capabilities={"add": ["SYS_ADMIN"]})}
    assert not any("SYS_ADMIN" in words for _, words in found(PodPolicy(level, ("SYS_ADMIN",)), head=head))


OWN = PodPolicy(operator="system/dljob")


def test_the_operators_own_service_account_is_refused_in_its_namespace_whatever_the_level():
    template = pod(serviceAccountName="dljob")
    policy = PodPolicy("privileged", exempt=("system",), operator="system/dljob")
    assert paths(template, policy, "system") == [f"{AT}.spec.serviceAccountName"]
    assert paths(template, policy, "team") == []
    assert paths(pod(serviceAccount="dljob"), OWN, "system") == [f"{AT}.spec.serviceAccount"]


TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


@pytest.mark.parametrize(
    ("template", "refused"),
    [
        ({}, False),
        (pod(serviceAccountName="train"), False),
        (pod(serviceAccountName="kuberay-operator"), True),
        (pod(automountServiceAccountToken=True), True),
        (pod(volumes=[TOKEN]), True),
    ],
)
def test_a_list_narrows_the_service_accounts(template: dict[str, Any], refused: bool):
    said = [words for _, words in found(PodPolicy(accounts=("train", "eval")), head={"template": template})]
    assert bool(said) == refused
    assert all("none of the operator's jobs.serviceAccounts: train, eval" in words for words in said)


def test_a_job_on_a_raycluster_that_is_there_has_no_pods_of_its_own():
    assert found(rayClusterRef={"name": "there"}) == []


def test_a_config_of_two_mebibytes_is_refused_at_its_path():
    with pytest.raises(SpecError, match=r"^spec.config: is 2097161 characters as JSON, at most 262144 \(put large"):
        found(config={"a": "x" * 2 * 1024**2})


def test_a_spec_too_large_for_a_configmap_is_refused():
    roles = [{**ROLE, "name": f"w{at}", "config": {"a": "x" * 250_000}} for at in range(4)]
    assert found(roles=roles[:3]) == []
    ((path, said),) = found(roles=roles)
    assert (path, said.partition("bytes")[2]) == ("spec", " as JSON, and a ConfigMap of it holds 1000000")
