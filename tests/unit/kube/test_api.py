"""The client against an API server in memory: what goes out, what comes back, and what the refusals become."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_cluster import FakeCluster, client_of

from dljob.errors import DLJobError, ExitCode, NotFoundError
from dljob.kube import api as api_module
from dljob.kube import connection
from dljob.kube.answers import Bounds
from dljob.kube.api import CONFIG_MAPS, DLJOBS, EVENTS, NODES, PODS, ApiError, Kube, NotThereError, Resource
from dljob.kube.connection import find
from dljob.kube.transport import Response


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (PODS, ("ns", "a"), "/api/v1/namespaces/ns/pods/a"),
        (PODS, (None,), "/api/v1/pods"),
        (NODES, ("ns", "n"), "/api/v1/nodes/n"),
        (DLJOBS, ("ns", "j", "status"), "/apis/dljob.io/v1alpha1/namespaces/ns/dljobs/j/status"),
        (EVENTS, ("a/b",), "/apis/events.k8s.io/v1/namespaces/a%2Fb/events"),
    ],
)
def test_resources_have_their_api_paths(resource: Resource, arguments: tuple[Any, ...], path: str) -> None:
    assert resource.path(*arguments) == path
    assert DLJOBS.api_version == "dljob.io/v1alpha1"
    assert PODS.api_version == "v1"


async def test_an_object_is_made_read_patched_and_deleted(fake: FakeCluster, kube: Kube) -> None:
    made = await kube.create(CONFIG_MAPS, config_map("one"))
    assert made["metadata"]["namespace"] == "default"
    assert (await kube.get(CONFIG_MAPS, "one"))["data"] == {"a": "1"}
    merged = await kube.patch(CONFIG_MAPS, "one", None, {"data": {"b": "2", "a": None}})
    assert merged["data"] == {"b": "2"}
    replaced = await kube.patch(CONFIG_MAPS, "one", None, [{"op": "add", "path": "/data/b", "value": "3"}], kind="json")
    assert replaced["data"] == {"b": "3"}
    await kube.delete(CONFIG_MAPS, "one", uid=made["metadata"]["uid"])
    assert fake.objects == {}


async def test_apply_makes_and_changes(kube: Kube) -> None:
    await kube.apply(CONFIG_MAPS, config_map("one"))
    again = await kube.apply(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {"a": "2"}})
    assert again["data"] == {"a": "2"}


async def test_logs_with_any_characters_are_applied(kube: Kube) -> None:
    """An API server reads an apply as YAML, which knows no surrogate pairs."""
    told = "sunny \U0001f3d6\ufe0f \x7f\x85\u2028\ufeff\x1b[0m a \\\\ud83c of text\t\n"
    made = await kube.apply(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {"a": f"{told}\udc80"}})
    assert made["data"] == {"a": f"{told}\ufffd"}


async def test_a_deletion_meant_for_another_object_is_refused(fake: FakeCluster, kube: Kube) -> None:
    await kube.create(CONFIG_MAPS, config_map("one"))
    with pytest.raises(ApiError, match="UID in the precondition") as caught:
        await kube.delete(CONFIG_MAPS, "one", uid="other")
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    with pytest.raises(ApiError, match="ResourceVersion in the precondition"):
        await kube.delete(CONFIG_MAPS, "one", version="0")
    assert fake.names("configmaps") == ["one"]
    await kube.delete(CONFIG_MAPS, "one", version=fake.one("configmaps", "one")["metadata"]["resourceVersion"])


async def test_a_missing_object_is_a_not_there_error(kube: Kube) -> None:
    with pytest.raises(NotThereError, match='configmaps "no" not found') as caught:
        await kube.get(CONFIG_MAPS, "no")
    assert isinstance(caught.value, NotFoundError)
    assert isinstance(caught.value, ApiError)
    assert caught.value.exit_code == ExitCode.NOT_FOUND


async def test_a_refusal_carries_the_servers_words(fake: FakeCluster, kube: Kube) -> None:
    fake.fail("GET", "configmaps", 403, message='configmaps is forbidden: User "eve" cannot list')
    with pytest.raises(ApiError) as caught:
        await kube.list(CONFIG_MAPS, None)
    assert caught.value.message == 'configmaps is forbidden: User "eve" cannot list'
    assert (caught.value.status, caught.value.reason, caught.value.exit_code) == (
        403,
        "Forbidden",
        ExitCode.UNREACHABLE,
    )
    assert "kubectl auth can-i" in caught.value.hint


async def test_lists_come_in_pages_and_select_by_label(fake: FakeCluster, kube: Kube) -> None:
    fake.page = 2
    for number in range(5):
        fake.put("configmaps", config_map(f"m{number}", odd=str(number % 2)), f"ns{number % 2}")
    assert len(await kube.list(CONFIG_MAPS, None)) == 5
    assert [o["metadata"]["name"] for o in await kube.list(CONFIG_MAPS, "ns0")] == ["m0", "m2", "m4"]
    assert [o["metadata"]["name"] for o in await kube.list(CONFIG_MAPS, labels="odd=1")] == ["m1", "m3"]


async def test_a_page_that_is_too_large_is_read_in_parts(
    fake: FakeCluster, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "SMALL_PAGE", 1000)
    monkeypatch.setattr(api_module, "PAGE", Bounds(10**6, 500))
    for number in range(30):
        large = [{}] * (400 if number in (5, 6) else 1)
        fake.put("configmaps", {**config_map(f"m{number:02}"), "data": large})
    pages = [page["items"] async for page in kube.pages(CONFIG_MAPS, "default", limit=20)]
    assert [item["metadata"]["name"] for page in pages for item in page] == [f"m{number:02}" for number in range(30)]
    assert all(sum(len(item["data"]) for item in page) < 500 for page in pages), "no two large ones at once"
    assert max(map(len, pages)) >= 8, "the small ones are not read one by one"
    fake.put("configmaps", {**config_map("m99"), "data": [{}] * 1000})
    assert len(await kube.list(CONFIG_MAPS, "default")) == 31, "a page of one object is read whatever its size"


async def test_changes_begin_with_what_is_there_or_after_a_version_and_have_lines_of_any_length(
    fake: FakeCluster, kube: Kube
) -> None:
    old = fake.put("configmaps", {**config_map("one"), "data": {"a": "x" * 10**6}})
    fake.put("configmaps", config_map("two"))
    async with aclosing(kube.changes(CONFIG_MAPS, "default")) as heard:
        assert [_short(await anext(heard)) for _ in range(2)] == [("ADDED", "one"), ("ADDED", "two")]
        fake.take("configmaps", "one")
        assert _short(await anext(heard)) == ("DELETED", "one")
    async with aclosing(kube.changes(CONFIG_MAPS, "default", old["metadata"]["resourceVersion"])) as heard:
        assert [_short(await anext(heard)) for _ in range(2)] == [("ADDED", "two"), ("DELETED", "one")]
    fake.compact()
    assert [heard async for heard in kube.changes(CONFIG_MAPS, "default", "1")] == []


async def test_a_stream_that_is_never_answered_ends(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that was silent for a while, and is back, still does not answer what it was asked meanwhile."""

    async def silent(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(kube.transport, "stream", silent)
    monkeypatch.setattr(api_module, "TIMEOUT", 0.01)
    async with asyncio.timeout(30):
        assert [heard async for heard in kube.changes(CONFIG_MAPS, "default")] == []


async def test_a_busy_server_is_asked_again(fake: FakeCluster, kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("dljob.kube.transport.asyncio.sleep", sleep)
    fake.fail("POST", "configmaps", 429, times=2)
    await kube.create(CONFIG_MAPS, config_map("one"))
    assert slept == [1.0, 1.0]
    fake.fail("POST", "configmaps", 429, times=9)
    with pytest.raises(ApiError) as caught:
        await kube.create(CONFIG_MAPS, config_map("two"))
    assert caught.value.status == 429


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"[" * 200_000, "it is nested too deep"), (b"<html>", "Expecting value: line 1 column 1")],
)
def test_an_answer_that_cannot_be_read_is_told_in_one_line(body: bytes, why: str) -> None:
    with pytest.raises(ApiError, match=f"an answer of the API server cannot be read: {why}"):
        Response(200, body).json()


async def test_a_server_that_is_not_there_is_named(fake: FakeCluster, kube: Kube) -> None:
    told: list[tuple[str, int]] = []
    server = await fake.serve()
    client = client_of(server)
    client.transport.on_call = lambda *call: told.append(call)
    await client.list(PODS, None)
    await server.close()
    with pytest.raises(ApiError, match=r"no answer from the Kubernetes API at http://127\.0\.0\.1") as caught:
        await client.list(PODS, None)
    assert (caught.value.status, caught.value.reason) == (0, "Unreachable")
    assert told == [("GET", 200), ("GET", 0)]
    await client.close()


async def test_credentials_that_ran_out_are_fetched_again(fake: FakeCluster) -> None:
    server = await fake.serve()
    client = client_of(server)
    fetched: list[bool] = []

    async def refresh() -> None:
        fetched.append(True)

    client.transport._refresh = refresh
    fake.fail("GET", "pods", 401)
    assert await client.list(PODS, None) == []
    fake.fail("GET", "pods", 401, times=2)
    with pytest.raises(ApiError) as caught:
        await client.list(PODS, None)
    assert caught.value.status == 401
    assert len(fetched) == 2
    await client.close()
    await server.close()


async def test_a_watch_tells_what_is_there_and_what_changes(fake: FakeCluster, kube: Kube) -> None:
    fake.put("configmaps", config_map("one"))
    heard = kube.watch(CONFIG_MAPS, "default")
    assert _short(await anext(heard)) == ("ADDED", "one")
    fake.put("configmaps", config_map("two"))
    assert _short(await anext(heard)) == ("ADDED", "two")
    fake.put("configmaps", {**config_map("one"), "data": {}})
    assert _short(await anext(heard)) == ("MODIFIED", "one")
    fake.take("configmaps", "two")
    assert _short(await anext(heard)) == ("DELETED", "two")
    await heard.aclose()


async def test_a_deletion_in_a_broken_watch_is_told(
    fake: FakeCluster, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "AGAIN", 0.0)
    fake.put("configmaps", config_map("one"))
    fake.put("configmaps", config_map("two"))
    heard = kube.watch(CONFIG_MAPS, "default")
    assert [_short(await anext(heard)) for _ in range(2)] == [("ADDED", "one"), ("ADDED", "two")]
    fake.put("configmaps", config_map("three"))
    assert _short(await anext(heard)) == ("ADDED", "three")  # the stream stands

    def meanwhile() -> None:
        fake.take("configmaps", "two")
        fake.put("configmaps", {**config_map("one"), "data": {}})

    fake.quietly(meanwhile)
    fake.fail("GET", "configmaps", 503, times=2)
    assert _short(await anext(heard)) == ("DELETED", "two")
    assert _short(await anext(heard)) == ("ADDED", "one")
    await heard.aclose()


async def test_a_watch_tells_that_what_was_seen_before_is_gone_or_still_there(fake: FakeCluster, kube: Kube) -> None:
    before = [fake.put("configmaps", config_map(name)) for name in ("gone", "stays", "again")]
    fake.take("configmaps", "gone")
    fake.take("configmaps", "again")
    fake.put("configmaps", config_map("again"))
    heard = kube.watch(CONFIG_MAPS, "default", known_before=before)
    told = [await anext(heard) for _ in range(4)]
    assert [_short(one) for one in told[:2]] == [("DELETED", "gone"), ("DELETED", "again")]
    assert sorted(map(_short, told[2:])) == [("ADDED", "again"), ("ADDED", "stays")]
    assert told[1][1]["metadata"]["uid"] == before[2]["metadata"]["uid"]
    await heard.aclose()


async def test_a_watch_that_may_not_list_says_so(fake: FakeCluster, kube: Kube) -> None:
    fake.fail("GET", "configmaps", 403)
    with pytest.raises(ApiError):
        await anext(kube.watch(CONFIG_MAPS, "default"))


async def test_a_pods_port_is_reached_through_the_api_server(fake: FakeCluster, kube: Kube) -> None:
    def pod(request: web.Request) -> web.Response:
        if request.headers.get("x-ray-authorization") != "Bearer T":
            return web.json_response({"error": "no token"}, status=401)
        return web.json_response({"path": request.path, "query": dict(request.query), "method": request.method})

    fake.proxies["head:8266"] = pod
    refused = await kube.proxy_get("head", 8266, "/v1/jobs")
    assert (refused.status, refused.json()) == (401, {"error": "no token"})
    headers = {"x-ray-authorization": "Bearer T"}
    got = await kube.proxy_get("head", 8266, "/v1/jobs", "ns", headers=headers, query={"after": 3})
    assert got.json() == {
        "path": "/api/v1/namespaces/ns/pods/head:8266/proxy/v1/jobs",
        "query": {"after": "3"},
        "method": "GET",
    }
    posted = await kube.proxy_post("head", 8266, "v1/x", None, {"a": 1}, headers=headers)
    assert posted.json()["method"] == "POST"
    assert posted.text().startswith("{")
    with pytest.raises(ApiError, match="error trying to reach service"):
        await kube.proxy_get("nobody", 8266, "/v1/jobs")


KUBECONFIG = """
current-context: one
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1/'}}]
users: [{name: u, user: {token: T}}]
contexts:
- {name: one, context: {cluster: c, user: u, namespace: team}}
- {name: two, context: {cluster: c, user: u}}
"""


def certified(data: str) -> str:
    """A kubeconfig with this certificate; kubectl writes DATA+OMITTED unless it is asked for --raw."""
    return KUBECONFIG.replace("'http://127.0.0.1:1/'", f"'https://127.0.0.1:1/', certificate-authority-data: {data}")


async def test_the_cluster_is_found_by_kubeconfig_and_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    way = await find(kubeconfig=str(file))
    assert (way.configuration.host, way.namespace) == ("http://127.0.0.1:1", "team")
    assert way.configuration.api_key == {"BearerToken": "Bearer T"}
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{file}")
    async with await Kube.connect(context="two") as kube:
        assert kube.namespace == "default"
    assert way.refresh is not None
    await way.refresh()


@pytest.mark.parametrize(
    ("text", "context", "says"),
    [
        (KUBECONFIG, "three", "cannot use context 'three' of the kubeconfig"),
        ("{", None, "cannot use the kubeconfig"),
        ("a: 1", None, "cannot use the kubeconfig"),
        (KUBECONFIG.replace("'http://127.0.0.1:1/'", "1"), None, "cannot use the kubeconfig"),
        (certified("DATA+OMITTED"), None, "cannot use the certificates of the kubeconfig .*/config: .* certificate"),
        (certified("DATA+OMITTED"), "two", "cannot use the certificates of context 'two' of the kubeconfig"),
        (certified("QUJ"), None, "cannot use the kubeconfig .*/config: Incorrect padding"),
        (None, None, "no kubeconfig at"),
    ],
)
async def test_a_kubeconfig_that_does_not_serve_is_refused_with_the_reason(
    tmp_path: Path, text: str | None, context: str | None, says: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(DLJobError, match=says) as caught:
        await Kube.connect(kubeconfig=str(file), context=context)
    assert caught.value.exit_code == ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (connection.config.ConfigException("oidc: failed to refresh access token"), 401),
        (ValueError("oidc: JWT tokens should contain 3 period-delimited parts"), 401),
        (aiohttp.ServerDisconnectedError(), 0),
        (TimeoutError(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_login_that_cannot_be_renewed_is_refused_with_its_kubeconfig(
    fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    """Status 0 is tried again by those who watch a job: the provider of the login may be back soon."""

    async def load(**_: Any) -> None:
        raise error

    server = await fake.serve()
    file = tmp_path / "config"
    file.write_text(KUBECONFIG.replace("http://127.0.0.1:1/", f"http://127.0.0.1:{server.port}"))
    async with await Kube.connect(kubeconfig=str(file)) as kube:
        monkeypatch.setattr(connection.config, "load_kube_config", load)
        fake.fail("GET", "pods", 401)
        with pytest.raises(
            ApiError, match=f"cannot use the kubeconfig {file}: .*{str(error) or type(error).__name__}"
        ) as caught:
            await kube.list(PODS, None)
    assert (caught.value.status, caught.value.exit_code) == (status, ExitCode.UNREACHABLE)
    await server.close()


async def test_inside_a_pod_the_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.aio.config import incluster_config

    claims = base64.urlsafe_b64encode(b'{"sub": "system:serviceaccount:ops:dljob"}').decode().rstrip("=")
    for name, text in {"token": f"head.{claims}.sign", "namespace": "ops\n", "ca.crt": "certificate"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(connection, "ACCOUNT", tmp_path)
    way = await find()
    assert (way.configuration.host, way.namespace, way.refresh) == ("https://10.0.0.1:443", "ops", None)
    assert way.configuration.api_key["BearerToken"].startswith("bearer head.")
    assert connection.own_account(tmp_path) == "ops/dljob"
    assert connection.own_account(tmp_path / "nowhere") == ""
    (tmp_path / "token").write_text("opaque")
    assert connection.own_account(tmp_path) == ""


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ({"namespace": "ops", "serviceaccount": {"name": "dljob", "uid": "u1"}}, {"name": "dljob", "uid": "u1"}),
        ({"namespace": "other", "serviceaccount": {"name": "dljob", "uid": "u1"}}, {}),
        ({"namespace": "ops", "serviceaccount": {"name": "dljob"}}, {}),
        ({}, {}),
    ],
    ids=["own", "another namespace", "an old token", "no claims"],
)
def test_the_account_of_a_token_owns_what_is_in_its_namespace(claims: Any, found: Any, tmp_path: Path) -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"kubernetes.io": claims}).encode()).decode().rstrip("=")
    (tmp_path / "token").write_text(f"head.{payload}.sign")
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", **found} if found else {}
    assert connection.own_account_reference("ops", tmp_path) == owner


async def test_without_a_kubeconfig_outside_a_pod_connecting_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ApiError, match="this is no pod"):
        await Kube.connect()


def _short(heard: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    return heard[0], heard[1]["metadata"]["name"]
