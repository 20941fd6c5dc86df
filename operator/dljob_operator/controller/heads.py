"""Clients of RayClusters' heads: over the pod network, with each cluster's token."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from dljob.kube import ray_jobs
from dljob.kube.gateway import GatewayClient
from dljob.kube.head import Ask, LargeAnswerSlots, address, directly
from dljob.kube.ray_jobs import JobApi
from dljob.kube.token_key import TokenKey
from dljob.kube.transport import Query, Response
from dljob.raycluster.pods import GATEWAY_PORT

_KEEP_SECONDS = 75.0
"""Time, in seconds, for which an idle connection is kept: longer than a long poll, so that the next one reuses it."""


class Heads:
    """One connection pool for all heads; `url` makes an address from host and port.

    `way` makes a client from a URL, a token and the head's namespace, in place of a client on the connection pool.
    """

    def __init__(
        self,
        key: TokenKey,
        *,
        url: Callable[[str, int], str] = address,
        way: Callable[[str, str, str], Ask] | None = None,
    ) -> None:
        self._key = key
        self._url = url
        self._lent: dict[tuple[str, str], str] = {}
        self.on_call: Callable[[int], None] = lambda _status: None
        """Called with the HTTP status of every call, 0 for no answer."""
        self.fence: Callable[[str], None] = lambda _method: None
        """Called right before each call with its method; its exception prevents the call."""
        self._session: aiohttp.ClientSession | None = None
        self._way = way or self._directly()

    async def close(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()

    def _directly(self) -> Callable[[str, str, str], Ask]:
        """Open the connection pool, and return the way over it."""
        slots = LargeAnswerSlots()
        # No limit per pool: each followed job holds a connection for its long poll.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS)
        self._session = session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return lambda url, token, namespace: directly(session, url, token, self.on_call, slots.of(namespace))

    def token(self, uid: str, cluster: str) -> str:
        """Return the token of a RayCluster of the DLJob with this uid (36 characters)."""
        return self._key.token(uid, cluster)

    def lend(self, uid: str, cluster: str, token: str) -> None:
        """Set the token for a RayCluster that is not the DLJob's own; empty: the cluster needs none."""
        self._lent[uid, cluster] = token

    def forget(self, uid: str) -> None:
        """Forget a deleted DLJob."""
        for known in [known for known in self._lent if known[0] == uid]:
            del self._lent[known]

    def gateway(self, namespace: str, uid: str, cluster: str, host: str) -> GatewayClient:
        """Return the gateway client of a head."""
        return GatewayClient(self._ask(namespace, uid, cluster, self._url(host, GATEWAY_PORT)))

    def ray(self, namespace: str, uid: str, cluster: str, host: str) -> JobApi:
        """Return the client of Ray's Job API on a head."""
        return JobApi(self._ask(namespace, uid, cluster, self._url(host, ray_jobs.PORT)))

    def _ask(self, namespace: str, uid: str, cluster: str, url: str) -> Ask:
        async def ask(
            method: str,
            path: str,
            *,
            query: Query | None = None,
            body: object = None,
            limit: float = 5.0,
            large: bool = False,
        ) -> Response:
            lent = self._lent.get((uid, cluster))  # at each call: the token may change
            token = self.token(uid, cluster) if lent is None else lent
            way = self._way(url, token, namespace)
            # Right before the call: a token and a connection may have taken time to get.
            self.fence(method)
            return await way(method, path, query=query, body=body, limit=limit, large=large)

        return ask
