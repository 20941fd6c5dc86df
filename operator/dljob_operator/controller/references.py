"""RayClusters that jobs refer to and the operator did not make: no watch covers them, so they are read live.

When another DLJob made the cluster, the operator can compute its token. Otherwise it reads the named Secret, which only
works where an administrator has granted that one Secret.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from dljob.kube.api import PODS, SECRETS, ApiError, Json, Kube, NotThereError
from dljob.kube.kuberay_client import RayClusters, token_secret
from dljob.raycluster.pods import TOKEN_KEY
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Object, Pod
from dljob_operator.controller.heads import Heads
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.pods import digest
from dljob_operator.watch.workqueue import Key

KEEP_SECONDS = 60.0
"""Time, in seconds, for which a token that was read is kept."""
_SPEC = ("suspend", "rayVersion")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One RayCluster; `locked` says why the token of a foreign one is not available, and what to do."""

    cluster: Json | None = None
    pods: tuple[Pod, ...] = ()
    locked: str = ""
    objection: tuple[str, str] = ("", "")
    """Reason and message of the last Warning about a RayCluster without any status from KubeRay."""


class References:
    """Reads the clusters, and gives their tokens to `heads`. `account` is the operator's own, `namespace/name`."""

    def __init__(
        self, kube: Kube, cache: Cache, heads: Heads, account: str = "", clock: OperatorClock = MACHINE
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._heads = heads
        self._account = account
        self._now = clock.monotonic
        self._read: dict[tuple[str, str], tuple[float, str]] = {}
        """(uid of the RayCluster, Secret) -> (time, token)."""

    async def read_cluster(self, uid: str, cluster_key: Key) -> ClusterView:
        """Return the RayCluster of that namespace and name, for the DLJob of this uid. Raises ApiError.

        The head's pod is read even when the cluster is gone: it and PrimeMaster live on for their grace period.
        """
        # Only the head: placement on a foreign cluster is shown on the DLJob alone, so its workers do not matter.
        head = f"ray.io/cluster={cluster_key.name},ray.io/node-type=head"
        pods = tuple(digest(pod) for pod in await self._kube.list(PODS, cluster_key.namespace, labels=head))
        try:
            body = await RayClusters(self._kube).get_ray_cluster(cluster_key.name, cluster_key.namespace)
        except NotThereError:
            return ClusterView(pods=pods)
        spec = part(body, "spec")
        # No decision reads managedFields.
        meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        lean = {"metadata": meta, "spec": {k: spec[k] for k in _SPEC if k in spec}, "status": part(body, "status")}
        locked = await self._unlock(uid, cluster_key, body)
        return ClusterView(lean, pods, locked)

    def forget(self, uid: str) -> None:
        """Forget a deleted DLJob."""
        self._heads.forget(uid)

    async def _unlock(self, uid: str, cluster_key: Key, body: Object) -> str:
        secret = token_secret(body)
        if not secret:
            # Without authOptions the cluster accepts any caller, and none of our tokens is sent to it.
            self._heads.lend(uid, cluster_key.name, "")
            return ""
        owner = self._maker(cluster_key, body, secret)
        try:
            token = (
                self._heads.token(owner, cluster_key.name)
                if owner
                else await self._read_secret(cluster_key, body, secret)
            )
        except ApiError as error:
            # The token is not available: the words tell the job's owner what to do.
            if error.status not in (401, 403, 404):
                raise
            return _hint(cluster_key, secret, error, self._account)
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return f"Secret {secret} of RayCluster {cluster_key.name} has no key {TOKEN_KEY} with a token"
        self._heads.lend(uid, cluster_key.name, token)
        return ""

    def _maker(self, cluster_key: Key, body: Object, secret: str) -> str:
        """Return the uid of the DLJob that made a RayCluster.

        The DLJob must exist: otherwise any user could claim its token by an owner reference.
        """
        for owner in items(body, "metadata", "ownerReferences"):
            job = self._cache.jobs.get(Key(cluster_key.namespace, text(owner, "name")))
            is_made_by_job = text(owner, "kind") == "DLJob" and bool(owner.get("controller"))
            if (
                is_made_by_job
                and job
                and job["metadata"]["uid"] == owner["uid"]
                and secret == names.token_secret(cluster_key.name)
            ):
                return job["metadata"]["uid"]
        return ""

    async def _read_secret(self, cluster_key: Key, body: Object, secret: str) -> str:
        known = (body["metadata"]["uid"], secret)
        at, token = self._read.get(known, (0.0, ""))
        if not token or self._now() > at + KEEP_SECONDS:
            secret_body = await self._kube.get(SECRETS, secret, cluster_key.namespace)
            token = base64.b64decode(secret_body["data"][TOKEN_KEY], validate=True).decode().strip()
            if not token:
                # An empty value is as useless as a missing key, and is reported like one.
                raise KeyError(TOKEN_KEY)
            self._read[known] = (self._now(), token)
        return token


def _hint(cluster_key: Key, secret: str, error: ApiError, account: str) -> str:
    if error.status == 404:
        return f"RayCluster {cluster_key.name} takes its token from Secret {secret}, which is not there"
    namespace, _, name = account.partition("/")
    service_account = f"{namespace}:{name}" if name else "<namespace>:<the operator's service account>"
    # Least privilege: `get` on this one Secret.
    grant = (
        f"kubectl create role {secret}-token-reader -n {cluster_key.namespace} --verb=get --resource=secrets"
        f" --resource-name={secret} && kubectl create rolebinding {secret}-token-reader -n {cluster_key.namespace}"
        f" --role={secret}-token-reader --serviceaccount={service_account}"
    )
    words = f"RayCluster {cluster_key.name} asks for the token in Secret {secret}, which the operator may not read"
    return f"{words}; let it: {grant}"
