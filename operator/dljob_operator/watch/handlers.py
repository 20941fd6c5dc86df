"""Glue to kopf: its watches fill the caches and queue keys. kopf writes nothing and decides nothing.

kopf fills its indices for all kinds before it lets any event through, and the caches are filled by index functions.
Deletions come as events. DLJobs are watched by `job_watch`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import kopf

from dljob.kube.connection import ApiConnection
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.feed import SELECTORS, WatchFeed, feeds
from dljob_operator.watch.workqueue import WorkQueue

Act: TypeAlias = Callable[[], Awaitable[None]]

SOON, LONGEST_PAUSE = 60.0, 10.0
"""Logins within SOON seconds count as refused ones; the longest pause between two, in seconds."""
VALID = timedelta(days=365)


class Endless:
    """Endless backoffs: kopf ends the process when lists fail for longer than its finite ones last."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0), itertools.repeat(10.0))


class Stateless(kopf.DiffBaseStorage):
    """Storage that keeps nothing: kopf would store each object's last handled state, for handlers that dljob lacks."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Return an empty essence to compare."""
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> None:
        """Return no last handled state."""

    def store(self, **_: object) -> None:
        """Store nothing."""


def configure(settings: kopf.OperatorSettings) -> None:
    """Configure kopf as a reader that writes nothing and never gives up."""
    settings.scanning.disabled = True
    # The operator writes its own Events; kopf would add one for each of its log lines.
    settings.posting.enabled = False
    # Comparing each object with the last one was 15 % of the operator's CPU at 400 jobs (ADR 10).
    settings.persistence.diffbase_storage = Stateless()
    # The server's limit is the lower one: a watch without events ends in order, not as a dead connection.
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 330
    settings.watching.chunk_size = 500
    settings.networking.error_backoffs = Endless()  # pyright: ignore[reportAttributeAccessIssue] - any iterable serves
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    for plural, selector in SELECTORS.items():
        settings.watching.label_selectors[plural] = selector


def watch_all(registry: kopf.OperatorRegistry, cache: Cache, queue: WorkQueue, *, kuberay: bool) -> None:
    """Register the watches but that of DLJobs (`job_watch`); RayClusters only when they are served."""
    for feed in feeds(cache, queue, kuberay=kuberay):
        _watch(registry, feed)


def _watch(registry: kopf.OperatorRegistry, feed: WatchFeed) -> None:
    resource = feed.resource
    which = (
        (resource.group, resource.version, resource.plural) if resource.group else (resource.version, resource.plural)
    )

    @kopf.index(*which, id=f"{resource.plural}-seen", registry=registry)
    async def on_index(body: kopf.Body, **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        feed.on_index(dict(body))

    @kopf.on.event(*which, id=f"{resource.plural}-told", registry=registry)
    async def on_event(event: kopf.RawEvent, **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        feed.on_event(event["type"], dict(event["object"]))


def login(ways: Callable[[], Awaitable[ApiConnection]], registry: kopf.OperatorRegistry) -> None:
    """Let kopf connect as our own client does.

    kopf gives up when it gets the same credentials again after a refusal (401); but an API server may refuse valid ones
    while it starts. So each login has another expiry, and those that follow each other soon wait longer.
    """
    entered: list[float] = []

    @kopf.on.login(id="way", registry=registry)
    async def enter(**_: object) -> kopf.ConnectionInfo:  # pyright: ignore[reportUnusedFunction]
        now = time.monotonic()
        entered[:] = [*(at for at in entered if now - at < SOON), now]
        if len(entered) > 1:
            await asyncio.sleep(min(LONGEST_PAUSE, 0.5 * 2.0 ** len(entered)))
        return connection(await ways(), datetime.now(UTC) + VALID)


def connection(way: ApiConnection, until: datetime | None = None) -> kopf.ConnectionInfo:
    """Convert a connection to kopf's form."""
    configuration = way.configuration
    scheme, _, token = str(configuration.api_key.get("BearerToken") or "").strip().partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        default_namespace=way.namespace,
        expiration=until,
    )


def register_start_and_stop(registry: kopf.OperatorRegistry, begin: Act, end: Act) -> None:
    """Register `begin` before the watches start, and `end` after they have ended."""

    @kopf.on.startup(id="begin", registry=registry)
    async def started(**_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        await begin()

    @kopf.on.cleanup(id="end", registry=registry)
    async def ended(**_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        await end()
