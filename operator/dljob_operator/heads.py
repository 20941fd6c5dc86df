"""The heads of RayClusters as the operator reaches them: by the pod network, with the token of each."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp

from dljob.kube import ray_jobs
from dljob.kube.gateway import Gateway
from dljob.kube.head import Ask, address, directly
from dljob.kube.ray_jobs import RayJobs
from dljob.kube.token_key import TokenKey
from dljob.kube.transport import Query, Reply
from dljob.plan.pods import GATEWAY_PORT

_KEEP_SECONDS = 75.0
"""An idle connection is kept that long: longer than a poll waits, so that the next one finds it open."""


class Heads:
    """One pool of connections to all heads. `url` makes an address of host and port."""

    def __init__(self, key: TokenKey, *, url: Callable[[str, int], str] = address) -> None:
        self._key = key
        self._url = url
        self._lent: dict[tuple[str, str], str] = {}
        self.on_call: Callable[[int], None] = lambda _status: None
        """Told of every call's HTTP status, 0 for no answer."""
        self.fence: Callable[[str], None] = lambda _method: None
        """Asked right before each call, with its method; what it raises keeps the call from being made."""
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS))

    async def close(self) -> None:
        """Drop the connections."""
        await self._session.close()

    def token(self, uid: str, cluster: str) -> str:
        """The token of a RayCluster of the DLJob with this uid (36 characters)."""
        return self._key.token(uid, cluster)

    def lend(self, uid: str, cluster: str, token: str) -> None:
        """What the DLJob of this uid says to a RayCluster that is not its own; empty: it asks for none."""
        self._lent[uid, cluster] = token

    def forget(self, uid: str) -> None:
        """The DLJob is gone."""
        for known in [known for known in self._lent if known[0] == uid]:
            del self._lent[known]

    def gateway(self, uid: str, cluster: str, host: str) -> Gateway:
        """The gateway of a head."""
        return Gateway(self._ask(uid, cluster, host, GATEWAY_PORT))

    def ray(self, uid: str, cluster: str, host: str) -> RayJobs:
        """Ray's Job API of a head."""
        return RayJobs(self._ask(uid, cluster, host, ray_jobs.PORT))

    def _ask(self, uid: str, cluster: str, host: str, port: int) -> Ask:
        url = self._url(host, port)

        async def ask(
            method: str, path: str, *, query: Query | None = None, body: object = None, limit: float = 5.0
        ) -> Reply:
            lent = self._lent.get((uid, cluster))  # asked each time: it may change
            token = self.token(uid, cluster) if lent is None else lent
            way = directly(self._session, url, token, self.on_call)
            self.fence(method)
            return await way(method, path, query=query, body=body, limit=limit)

        return ask
