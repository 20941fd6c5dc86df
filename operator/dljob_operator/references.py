"""RayClusters that are not ours, as a job sees the one it runs on: no watch tells of them, so they are looked at live.

The token of one is the operator's own when another DLJob made it; else it is asked for by name, which only works where
somebody has let the operator read that one Secret.
"""

from __future__ import annotations

import base64
import binascii
import time
from dataclasses import dataclass

from dljob.control import names
from dljob.control.fields import items, part, text
from dljob.control.model import Object, Pod
from dljob.kube.api import PODS, SECRETS, ApiError, Json, Kube, NotThereError
from dljob.kube.kuberay_client import RayClusters, token_secret
from dljob.plan.pods import TOKEN_KEY
from dljob_operator.cache import Cache
from dljob_operator.heads import Heads
from dljob_operator.pods import digest
from dljob_operator.workqueue import Key

KEEP_SECONDS = 60.0
"""A token is read again after that."""
_SPEC = ("suspend", "rayVersion")


@dataclass(frozen=True, slots=True)
class Seen:
    """One RayCluster. `locked`: why the token of one that is not the job's cannot be had, and what to do."""

    cluster: Json | None = None
    pods: tuple[Pod, ...] = ()
    locked: str = ""
    objection: tuple[str, str] = ("", "")
    """Reason and words of the last Warning about a RayCluster that KubeRay has written nothing to."""


class References:
    """Looks at them; what it knows of tokens is lent to `heads`. `account`: the operator's own, `namespace/name`."""

    def __init__(self, kube: Kube, cache: Cache, heads: Heads, account: str = "") -> None:
        self._kube = kube
        self._cache = cache
        self._heads = heads
        self._account = account
        self._read: dict[tuple[str, str], tuple[float, str]] = {}
        """(uid of the RayCluster, Secret) -> (when, token)."""

    async def look(self, uid: str, where: Key) -> Seen:
        """The RayCluster of that namespace and name, for the DLJob of this uid. Raises ApiError."""
        try:
            body = await RayClusters(self._kube).get(where.name, where.namespace)
        except NotThereError:
            return Seen()
        head = f"ray.io/cluster={where.name},ray.io/node-type=head"
        pods = tuple(digest(pod) for pod in await self._kube.list(PODS, where.namespace, labels=head))
        spec = part(body, "spec")
        meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        lean = {"metadata": meta, "spec": {k: spec[k] for k in _SPEC if k in spec}, "status": part(body, "status")}
        locked = await self._unlock(uid, where, body)
        return Seen(lean, pods, locked)

    def forget(self, uid: str) -> None:
        """The DLJob is gone."""
        self._heads.forget(uid)

    async def _unlock(self, uid: str, where: Key, body: Object) -> str:
        secret = token_secret(body)
        if not secret:
            self._heads.lend(uid, where.name, "")
            return ""
        owner = self._maker(where, body, secret)
        try:
            token = self._heads.token(owner, where.name) if owner else await self._asked(where, body, secret)
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            return _words(where, secret, error, self._account)
        except (KeyError, binascii.Error, UnicodeDecodeError):
            return f"Secret {secret} of RayCluster {where.name} has no key {TOKEN_KEY} with a token"
        self._heads.lend(uid, where.name, token)
        return ""

    def _maker(self, where: Key, body: Object, secret: str) -> str:
        """The uid of the DLJob that made the RayCluster; it must be there, or anybody could claim to have its token."""
        for owner in items(body, "metadata", "ownerReferences"):
            job = self._cache.jobs.get(Key(where.namespace, text(owner, "name")))
            ours = text(owner, "kind") == "DLJob" and bool(owner.get("controller"))
            if ours and job and job["metadata"]["uid"] == owner["uid"] and secret == names.token_secret(where.name):
                return job["metadata"]["uid"]
        return ""

    async def _asked(self, where: Key, body: Object, secret: str) -> str:
        known = (body["metadata"]["uid"], secret)
        at, token = self._read.get(known, (0.0, ""))
        if not token or time.monotonic() > at + KEEP_SECONDS:
            found = await self._kube.get(SECRETS, secret, where.namespace)
            token = base64.b64decode(found["data"][TOKEN_KEY], validate=True).decode().strip()
            if not token:
                raise KeyError(TOKEN_KEY)
            self._read[known] = (time.monotonic(), token)
        return token


def _words(where: Key, secret: str, error: ApiError, account: str) -> str:
    if error.status == 404:
        return f"RayCluster {where.name} takes its token from Secret {secret}, which is not there"
    namespace, _, name = account.partition("/")
    who = f"{namespace}:{name}" if name else "<namespace>:<the operator's service account>"
    grant = (
        f"kubectl create role {secret}-token-reader -n {where.namespace} --verb=get --resource=secrets"
        f" --resource-name={secret} && kubectl create rolebinding {secret}-token-reader -n {where.namespace}"
        f" --role={secret}-token-reader --serviceaccount={who}"
    )
    words = f"RayCluster {where.name} asks for the token in Secret {secret}, which the operator may not read"
    return f"{words}; let it: {grant}"
