"""One real Ray that stands in for many heads, and the proxy ("door") to it.

    python scene.py <fd of a listening socket>

Each head of a life has its own address and token. The door does what the head's pod would: it checks the token, mounts
the spec, and maps the gateway's port. Behind it are Ray's Job API and our gateway, launcher and PrimeMaster. In a
network namespace of its own, the door still listens where its socket was created.

`/<address>/<port>/...` is served for a head's port; `/scene/...` is for the director.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

RAY_TESTS = Path(__file__).resolve().parents[2] / "ray"
sys.path[:0] = [str(RAY_TESTS / "kits"), str(RAY_TESTS / "users")]

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",
}
RAY_PORT = 8265
_HOP = {"host", "content-length", "authorization", "x-ray-authorization", "transfer-encoding", "connection"}


@dataclass
class Head:
    """A head as if in a pod of its own."""

    uid: str
    cluster: str
    token: str
    pod: str
    """Name of the worker pod that this Ray's nodes stand in for."""
    folder: Path
    calls: list[str] = field(default_factory=list)
    refused: int = 0


class Scene:
    """The Ray and the heads that it stands in for."""

    def __init__(self) -> None:
        from gateway_kit import Ray

        self.ray = Ray()
        self.mounts = Path(tempfile.mkdtemp(prefix="dls-", dir="/tmp"))
        self.heads: dict[str, Head] = {}
        self.over: list[Head] = []
        self._session: aiohttp.ClientSession | None = None

    # -- requests to heads

    async def door(self, request: web.Request) -> web.StreamResponse:
        """Answer a request to a head."""
        head = self.heads.get(request.match_info["ip"])
        if head is None:
            return self._silence(request)
        if request.headers.get("Authorization") != f"Bearer {head.token}":
            head.refused += 1
            return web.json_response({"error": "wrong token"}, status=401)
        port, path = int(request.match_info["port"]), "/" + request.match_info["path"]
        body = await request.read()
        if (request.method, port, path) == ("POST", RAY_PORT, "/api/jobs/"):
            body = self._mounted(head, json.loads(body))
        head.calls.append(f"{request.method} {port} {path}")
        return await self._forward(request, head, port, path, body)

    def _mounted(self, head: Head, order: dict[str, Any]) -> bytes:
        """Return the launcher's command line with the pod's paths and port replaced by local ones."""
        from dljob.raycluster.pods import SPEC_DIR

        line = order["entrypoint"].replace(SPEC_DIR, str(head.folder))
        assert line.startswith("python "), line
        own = f"--host 127.0.0.1 --port {self.ray.port}"
        return json.dumps({**order, "entrypoint": f"{sys.executable} {line.removeprefix('python ')} {own}"}).encode()

    async def _forward(self, request: web.Request, head: Head, port: int, path: str, body: bytes) -> web.StreamResponse:
        where = self.ray.jobs_api if port == RAY_PORT else self.ray.gateway
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        headers["Authorization"] = f"Bearer {os.environ['RAY_AUTH_TOKEN']}"
        assert self._session is not None
        call = self._session.request(
            request.method, where + path, params=request.query, data=body, headers=headers, timeout=_LONG
        )
        try:
            async with call as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return self._silence(request)
        if self.heads.get(request.match_info["ip"]) is not head:
            return self._silence(request)  # The head was lost meanwhile.
        if path.endswith("/placement"):
            for node in ("pod-a", "pod-b"):
                said = said.replace(f'"{node}"'.encode(), f'"{head.pod}"'.encode())
        return web.Response(status=answer.status, body=said, content_type=answer.content_type)

    @staticmethod
    def _silence(request: web.Request) -> web.StreamResponse:
        """Close the connection, as if the head did not exist."""
        if request.transport:
            request.transport.abort()
        return web.Response(status=502)

    # -- requests of the director

    async def begin(self, request: web.Request) -> web.Response:
        """Start a head."""
        said = await request.json()
        folder = self.mounts / said["cluster"]
        folder.mkdir(exist_ok=True)
        for name, text in said["files"].items():
            (folder / name).write_text(text)
        for kept in self._folders(said["uid"]):  # A new head has no files of the last one.
            kept.rename(self.mounts / f"{kept.name}-of-{said['cluster']}")
        self.heads[said["ip"]] = Head(said["uid"], said["cluster"], said["token"], said["pod"], folder)
        return web.json_response({})

    async def lose(self, request: web.Request) -> web.Response:
        """Lose a head with everything of its job."""
        head = self.heads.pop(request.match_info["ip"], None)
        if head is None:
            return web.json_response({})
        self.over.append(head)
        for sent in await self._submissions(head.uid):
            if sent["status"] in ("PENDING", "RUNNING"):
                await self._ray("POST", f"/api/jobs/{sent['submission_id']}/stop")
        await asyncio.to_thread(_end, head.uid.replace("-", ""))
        return web.json_response({})

    async def replace(self, request: web.Request) -> web.Response:
        """Replace the worker pod by another one."""
        self.heads[request.match_info["ip"]].pod = request.match_info["pod"]
        return web.json_response({})

    async def touch(self, request: web.Request) -> web.Response:
        """Create a file that a job's user code waits for."""
        for folder in self._folders(request.match_info["uid"]):
            (folder / request.match_info["file"]).touch()
        return web.json_response({})

    async def told(self, request: web.Request) -> web.Response:
        """Return this Ray's state of a job: its submissions and leftovers."""
        uid = request.match_info["uid"]
        sent = await self._submissions(uid)
        left = await asyncio.to_thread(_left, uid.replace("-", ""))
        refused = sum(head.refused for head in (*self.heads.values(), *self.over) if head.uid == uid)
        ids = sorted((row["submission_id"], row["status"]) for row in sent)
        return web.json_response({"submissions": ids, "left": left, "refused": refused})

    def _folders(self, uid: str) -> list[Path]:
        return list((self.ray.home / "jobs").glob(f"*-{uid[:8]}"))

    async def _submissions(self, uid: str) -> list[dict[str, Any]]:
        rows = await self._ray("GET", "/api/jobs/")
        return [row for row in rows if (row.get("metadata") or {}).get("dljob.io/uid") == uid]

    async def _ray(self, method: str, path: str) -> Any:
        assert self._session is not None
        headers = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
        async with self._session.request(method, self.ray.jobs_api + path, headers=headers) as answer:
            return await answer.json()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until the director closes its end."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/scene/head", self.begin)
        app.router.add_post("/scene/lose/{ip}", self.lose)
        app.router.add_post("/scene/replace/{ip}/{pod}", self.replace)
        app.router.add_post("/scene/touch/{uid}/{file}", self.touch)
        app.router.add_get("/scene/told/{uid}", self.told)
        app.router.add_route("*", "/{ip}/{port}/{path:.*}", self.door)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await self._session.close()
        await runner.cleanup()

    def close(self) -> None:
        """End the Ray."""
        import ray

        ray.shutdown()
        self.ray.close()
        shutil.rmtree(self.mounts, ignore_errors=True)


_LONG = aiohttp.ClientTimeout(total=60)


def _named(uid: str) -> list[str]:
    """Return the actors of a job."""
    import ray

    rows = ray.util.list_named_actors(all_namespaces=True)
    return sorted(row["name"] for row in rows if row["name"].startswith(f"{uid[:8]}/"))


def _groups(uid: str) -> list[dict[str, Any]]:
    """Return the placement groups of a job."""
    import ray

    rows: list[dict[str, Any]] = list(ray.util.placement_group_table().values())
    return [row for row in rows if row["name"].startswith(f"{uid[:8]}/") and row["state"] != "REMOVED"]


def _keys(uid: str) -> list[str]:
    """Return the job's keys in Ray's store."""
    from ray.experimental import internal_kv

    found: list[bytes] = internal_kv._internal_kv_list("dljob/", namespace="dljob")
    return sorted(key.decode() for key in found if uid in key.decode())


def _left(uid: str) -> list[str]:
    """Return everything in Ray that belongs to a job."""
    groups = [f"group {row['name']}" for row in _groups(uid)]
    return [*(f"actor {name}" for name in _named(uid)), *groups, *(f"key {key}" for key in _keys(uid))]


def _end(uid: str) -> None:
    """End everything of a job at once, as the loss of its head would."""
    import ray
    from ray._private.worker import global_worker  # noqa: F401 - connects the store
    from ray.experimental import internal_kv
    from ray.util.placement_group import PlacementGroup

    for _ in range(2):  # The second round ends actors that were being created during the first.
        for name in sorted(_named(uid), key=lambda name: not name.endswith("/master")):
            try:
                ray.kill(ray.get_actor(name, namespace="dljob"))
            except ValueError:
                continue
        for row in _groups(uid):
            ray.util.remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(row["placement_group_id"])))
    for key in _keys(uid):
        internal_kv._internal_kv_del(key, namespace="dljob")


def main() -> None:
    """Start Ray, serve, and end Ray."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    os.environ.update({**ENVIRONMENT, "RAY_AUTH_TOKEN": os.urandom(16).hex()})
    try:
        scene = Scene()
    except Exception:  # noqa: BLE001 - Ray 2.60 gives a head that is slow to come up no second chance
        scene = Scene()
    try:
        import ray

        ray.init(address=scene.ray.head.gcs_address, namespace="sweep", log_to_driver=False, configure_logging=False)
        asyncio.run(scene.serve(listener))
    finally:
        scene.close()


if __name__ == "__main__":
    main()
