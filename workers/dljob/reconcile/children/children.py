"""The children of a job in Kubernetes, one set for each attempt: ConfigMap, Secret, NetworkPolicy and RayCluster."""

from __future__ import annotations

import hashlib
import json

from dljob.plan.serving import HIGHEST_PORT, LOWEST_PORT
from dljob.raycluster.acceptance import spec_text
from dljob.raycluster.pods import CARRIED_KEY, GATEWAY_PORT, RAY_PORTS, SPEC_KEY
from dljob.raycluster.render import RenderOptions, render_raycluster
from dljob.reconcile.children import patches
from dljob.reconcile.children.memory_growth import larger
from dljob.reconcile.state import accept, exclusions, handover, names
from dljob.reconcile.state.accept import Blueprint, Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.model import Create, CreateToken, Delete, Object
from dljob.reconcile.state.placement import placement_plan
from dljob.reconcile.state.steps import PolicyDecision

OPEN_PORTS = (dict(RAY_PORTS)["dashboard"], GATEWAY_PORT, dict(RAY_PORTS)["metrics"])
"""Ports that the operator, `dljob` and Prometheus use from outside; the first two answer nobody without the token."""


def missing(case: ReconcileContext) -> PolicyDecision | None:
    """Create what the attempt lacks. The RayCluster comes last, so that its pods find what they mount.

    Therefore it cannot own the token's Secret, which is older; the ConfigMap with the spec does, which is created
    first.

    The status gets the digest of the spec before anything is created. All objects of one attempt come from one spec: a
    pass that finds some of them, after a crash or a refusal, sees by the digest whether the spec was edited since.
    """
    if case.ref or case.cluster is not None or (case.observed.cluster is not None and not case.replaced):
        return None
    # Nothing is created before KubeRay can run it, so that an edit in the meantime needs no new attempt.
    if case.observed.kuberay:
        return PolicyDecision(f"waits for KubeRay, which is {case.observed.kuberay}")
    if isinstance(case.terms, Refused):
        return PolicyDecision(f"waits for a better spec: {case.terms.reason}")
    blueprint = accept.blueprint(case.source, case.settings)
    cluster = ray_cluster(case, blueprint, case.terms.hash)
    return PolicyDecision(
        f"attempt {case.attempt} has no RayCluster",
        actions=(
            # The ConfigMap owns the Secret, so it comes first.
            Create("ConfigMap", spec_map(case, blueprint)),
            _token(case),
            *network_policies(case, blueprint),
            *delete_spec_map(case, case.attempt - 1),
            *_delete_network_policy(case, case.attempt - 1),
            Create("RayCluster", cluster),
        ),
        events=exclusions.unlisted(case),
        written_first=True,
    )


def delete_spec_map(case: ReconcileContext, attempt: int) -> tuple[Delete, ...]:
    """Delete what an ended attempt leaves beside its RayCluster: nobody reads its spec any more.

    The operator has no right to delete Secrets: the garbage collector deletes the token's Secret with its owner, the
    ConfigMap.

    This action comes before the one that ends the pass for good, so that a pass after a crash between the two repeats
    it.
    """
    if case.ref or attempt < 1:
        return ()
    name = names.cluster_name(case.name, case.uid, attempt)
    return (Delete("ConfigMap", names.spec_map(name), ""),)


def _delete_network_policy(case: ReconcileContext, attempt: int) -> tuple[Delete, ...]:
    """Delete the NetworkPolicy of an ended attempt, whose spec may have asked for one that the present spec does not.

    Only the next attempt does so, which begins once the last one's ranks are dead: it closes their ports until then.
    The last attempt's goes with the DLJob.
    """
    if attempt < 1:
        return ()
    name = names.cluster_name(case.name, case.uid, attempt)
    return (Delete("NetworkPolicy", names.network_policy(name), ""),)


def labels(case: ReconcileContext) -> dict[str, str]:
    """Return the labels of every child."""
    return {names.LABEL_NAME: case.name, names.LABEL_UID: case.uid, names.LABEL_MANAGED: "dljob"}


def _token(case: ReconcileContext) -> CreateToken:
    secret, owner = names.token_secret(case.cluster_name), names.spec_map(case.cluster_name)
    return CreateToken(secret, case.cluster_name, owner, labels(case))


def spec_map(case: ReconcileContext, blueprint: Blueprint) -> Object:
    """Return the immutable ConfigMap with the attempt's spec and the state that the last attempt handed over."""
    carried = handover.handed(case)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.spec_map(case.cluster_name),
            "namespace": case.meta["namespace"],
            "labels": labels(case),
            "ownerReferences": [case.owner],
        },
        # The ranks of an attempt must not see a spec change under them; an edit makes a new attempt with new names.
        "immutable": True,
        "data": {SPEC_KEY: spec_text(blueprint.manifest), **({CARRIED_KEY: carried} if carried else {})},
    }


def network_policies(case: ReconcileContext, blueprint: Blueprint) -> tuple[Create, ...]:
    """Return the NetworkPolicy for the attempt's pods; empty: none is wanted.

    The API server's proxy to a pod, which `dljob logs` uses, comes from no pod that a policy could name, so the open
    ports are open to all.
    """
    if not blueprint.manifest.spec.network_policy.enabled:
        return ()
    pods = {"matchLabels": {"ray.io/cluster": case.cluster_name}}
    ports = [{"port": port, "protocol": "TCP"} for port in OPEN_PORTS]
    body = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.network_policy(case.cluster_name),
            "namespace": case.meta["namespace"],
            "labels": labels(case),
            "ownerReferences": [case.owner],
        },
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}]}, {"ports": ports}, *_service_ports(blueprint)],
        },
    }
    return (Create("NetworkPolicy", body),)


def _service_ports(blueprint: Blueprint) -> list[Object]:
    """Return the rule that lets the namespace's pods in to roles with a Service; empty: there is none.

    A free port is known only once its rank starts, so all that it may be are open: nothing else of dljob listens there.
    """
    numbers = [number for role in blueprint.plan.roles.values() if role.service for _, number in role.ports]
    if not numbers:
        return []
    ports: list[Object] = [{"port": number, "protocol": "TCP"} for number in sorted({*numbers} - {0})]
    if 0 in numbers:
        ports.append({"port": LOWEST_PORT, "endPort": HIGHEST_PORT, "protocol": "TCP"})
    return [{"from": [{"podSelector": {}}], "ports": ports}]


def ray_cluster(case: ReconcileContext, blueprint: Blueprint, spec_hash: str) -> Object:
    """Return the RayCluster of the attempt."""
    text, digest = placement_plan(blueprint.plan)
    options = RenderOptions(
        name=case.cluster_name,
        namespace=case.meta["namespace"],
        owner=case.owner,
        labels=labels(case),
        annotations={names.PLAN: text, names.PLAN_HASH: digest, names.SPEC_HASH: spec_hash},
        token_secret=names.token_secret(case.cluster_name),
        spec_map=names.spec_map(case.cluster_name),
        init_image=case.settings.init_image,
        toleration_seconds=case.settings.toleration_seconds,
        version=case.settings.version,
    )
    body = render_raycluster(larger(blueprint, handover.memory(case)), blueprint.manifest, options)
    # The digest is taken before exclusions are added: `drift` compares with the spec as it was rendered.
    body["metadata"]["annotations"] |= {names.MADE_HASH: made_hash(body), names.MADE_BY: case.settings.version}
    return patches.excluding(body, exclusions.avoided(exclusions.every(case)))


def made_hash(cluster: Object) -> str:
    """Return 16 hex digits over a RayCluster's spec."""
    return hashlib.sha256(json.dumps(cluster["spec"], sort_keys=True).encode()).hexdigest()[:16]
