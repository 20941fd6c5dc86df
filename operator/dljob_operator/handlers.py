"""The glue to kopf: its watches fill the caches and bring keys up. kopf writes nothing, and decides nothing.

An index is what kopf fills before it lets any event through, for all kinds: so the caches are filled there, and no
DLJob is looked at before its RayCluster has been seen. Deletions come as events.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import kopf

from dljob.control import names
from dljob.control.model import Object
from dljob.kube.api import DLJOBS, PODS, RAYCLUSTERS, Resource
from dljob.kube.connection import Way
from dljob_operator.cache import Cache, Shelf, key_of
from dljob_operator.workqueue import Key, WorkQueue

Put: TypeAlias = Callable[[Object], Key | None]
Drop: TypeAlias = Callable[[Key, str], Key | None]
Act: TypeAlias = Callable[[], Awaitable[None]]
_Kind: TypeAlias = tuple[Resource, Shelf[Any], Put, Drop]

SELECTORS: Mapping[str, str] = {
    RAYCLUSTERS.plural: f"{names.LABEL_MANAGED}=dljob",
    PODS.plural: names.LABEL_UID,
}
"""What is asked of the server of each kind; DLJobs are seen all."""


SOON, LONGEST_PAUSE = 60.0, 10.0
"""Logins within so many seconds are one after the other's refusal; the pause between two of them."""
VALID = timedelta(days=365)


class Endless:
    """Pauses that never run out: kopf ends the process when a list fails for longer than its pauses last."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0), itertools.repeat(10.0))


class Stateless(kopf.DiffBaseStorage):
    """kopf compares each object with what it last handled, for handlers that are not used here: there is nothing."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """What would be compared."""
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> None:
        """What was last handled."""

    def store(self, **_: object) -> None:
        """Remember nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Make kopf a reader that never gives up."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = Stateless()
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 330
    settings.watching.chunk_size = 500
    settings.networking.error_backoffs = Endless()  # pyright: ignore[reportAttributeAccessIssue] - any iterable serves
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    for plural, selector in SELECTORS.items():
        settings.watching.label_selectors[plural] = selector


def watch_all(registry: kopf.OperatorRegistry, cache: Cache, queue: WorkQueue, *, kuberay: bool) -> None:
    """Register the kinds that are watched; RayClusters only when they are served."""
    kinds: list[_Kind] = [
        (DLJOBS, cache.jobs, cache.put_job, cache.drop_job),
        (PODS, cache.pods, cache.put_pod, cache.drop_pod),
    ]
    if kuberay:
        kinds.append((RAYCLUSTERS, cache.clusters, cache.put_cluster, cache.drop_cluster))
    for kind in kinds:
        _watch(registry, kind, queue)


def _watch(registry: kopf.OperatorRegistry, kind: _Kind, queue: WorkQueue) -> None:
    resource, shelf, put, drop = kind
    which = (
        (resource.group, resource.version, resource.plural) if resource.group else (resource.version, resource.plural)
    )
    concerned: dict[str, Key] = {}

    @kopf.index(*which, id=f"{resource.plural}-seen", registry=registry)
    async def seen(body: kopf.Body, **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        key = put(dict(body))
        if key:
            concerned[body["metadata"]["uid"]] = key

    @kopf.on.event(*which, id=f"{resource.plural}-told", registry=registry)
    async def told(event: kopf.RawEvent, **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        body: Object = dict(event["object"])
        uid: str = body["metadata"]["uid"]
        shelf.heard += 1
        key = concerned.pop(uid, None)
        if event["type"] == "DELETED":
            key = drop(key_of(body), uid) or key
        if key:
            queue.add(key)


def login(ways: Callable[[], Awaitable[Way]], registry: kopf.OperatorRegistry) -> None:
    """Let kopf go the way that our own client goes.

    kopf gives up when what was refused (401) once is all that it is given again; an API server may refuse what is good
    while it starts. So each time it is told another end of their validity, and waits longer when it comes back soon.
    """
    entered: list[float] = []

    @kopf.on.login(id="way", registry=registry)
    async def enter(**_: object) -> kopf.ConnectionInfo:  # pyright: ignore[reportUnusedFunction]
        now = time.monotonic()
        entered[:] = [*(at for at in entered if now - at < SOON), now]
        if len(entered) > 1:
            await asyncio.sleep(min(LONGEST_PAUSE, 0.5 * 2.0 ** len(entered)))
        return connection(await ways(), datetime.now(UTC) + VALID)


def connection(way: Way, until: datetime | None = None) -> kopf.ConnectionInfo:
    """A way to the cluster as kopf wants it told."""
    found = way.configuration
    scheme, _, token = str(found.api_key.get("BearerToken") or "").strip().partition(" ")
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        proxy_url=found.proxy,
        default_namespace=way.namespace,
        expiration=until,
    )


def life(registry: kopf.OperatorRegistry, begin: Act, end: Act) -> None:
    """What is done before the watches start, and after they have ended."""

    @kopf.on.startup(id="begin", registry=registry)
    async def started(**_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        await begin()

    @kopf.on.cleanup(id="end", registry=registry)
    async def ended(**_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        await end()
