"""The admission webhook as the API server meets it: HTTPS, bounds of size and time, a process that dies."""

from __future__ import annotations

import asyncio
import io
import json
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from shell_kit import ROLE, SETTINGS

from dljob.reconcile.admission import Admission
from dljob_operator.webhook import judge, process, server
from dljob_operator.webhook.certificate import Certificate, expires
from dljob_operator.webhook.process import Judged, JudgeProcess, UnjudgedError
from dljob_operator.webhook.server import MAX_BODY, Webhook

NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)


def question(uid: str = "u-1", **spec: Any) -> bytes:
    job = {"metadata": {"name": "hello", "namespace": "team"}, "spec": {"roles": [ROLE], **spec}}
    request = {"uid": uid, "operation": "CREATE", "namespace": "team", "object": job}
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


def certify(folder: Path, until: datetime) -> str:
    """A certificate and its key as the Secret has them; returns the PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), NOW - timedelta(days=900), until
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    plain = serialization.NoEncryption()
    (folder / "tls.crt").write_text(pem)
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return pem


class Stub(JudgeProcess):
    """A judge that answers as it is told."""

    def __init__(self, admission: Admission | None = None) -> None:
        super().__init__(SETTINGS)
        self.admission, self.asked, self.gate = admission, 0, asyncio.Event()
        self.gate.set()

    def start(self) -> Any:
        return None

    async def judge(self, body: bytes) -> Judged:
        self.asked += 1
        await self.gate.wait()
        if self.admission is None:
            raise UnjudgedError("it takes longer than 2 s")
        return Judged("u-1", "admission.k8s.io/v1", "team", self.admission)


class Api:
    """The API server's side."""

    def __init__(self, webhook: Webhook, port: int, trusted: ssl.SSLContext, counts: list[str]) -> None:
        self.webhook, self.counts = webhook, counts
        self.url, self.trusted = f"https://localhost:{port}/validate", trusted
        self.session = aiohttp.ClientSession()

    async def post(self, body: Any, **headers: str) -> tuple[int, Any]:
        async with self.session.post(self.url, data=body, ssl=self.trusted, headers=headers) as answer:
            said = await answer.text()
            return answer.status, json.loads(said)["response"] if answer.status == 200 else said


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    pem = certify(tmp_path, NOW + timedelta(days=36500))
    counts: list[str] = []
    webhook = Webhook(SETTINGS, Certificate(tmp_path), count=counts.append, process=Stub(Admission(allowed=True)))
    assert webhook.certificate.load()
    port = await webhook.serve(0, "localhost")
    made = Api(webhook, port, ssl.create_default_context(cadata=pem), counts)
    yield made
    await made.session.close()
    await webhook.close()


def stub(api: Api) -> Stub:
    found = api.webhook._judge
    assert isinstance(found, Stub)
    return found


async def test_answers_come_by_tls_and_are_counted(api: Api) -> None:
    assert await api.post(question()) == (200, {"uid": "u-1", "allowed": True})
    stub(api).admission = Admission(allowed=False, message="no")
    code, said = await api.post(question())
    assert (code, said["allowed"], said["status"]["message"]) == (200, False, "no")
    stub(api).admission = None
    code, said = await api.post(question("u-7"))
    assert (said["uid"], said["allowed"]) == ("u-7", True)
    assert said["warnings"] == ["dljob: not checked as it was applied: it takes longer than 2 s"]
    assert api.counts == ["allowed", "refused", "unjudged"]


@pytest.mark.parametrize("length", [f"Content-Length: {MAX_BODY + 1}", "Transfer-Encoding: chunked"])
async def test_a_body_over_three_mebibytes_is_refused_unread(api: Api, length: str) -> None:
    port = int(api.url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=api.trusted)
    writer.write(f"POST /validate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
    if "chunked" in length:  # nobody says beforehand how much comes
        writer.write(f"{MAX_BODY + 1:x}\r\n".encode() + b" " * (MAX_BODY + 1))
    assert (await reader.readline()).split()[1] == b"413"
    writer.close()
    assert stub(api).asked == 0


async def test_no_more_questions_are_held_than_memory_allows(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_AT_ONCE", 2)
    stub(api).gate.clear()
    waiting = [asyncio.create_task(api.post(question())) for _ in range(2)]
    while stub(api).asked < 2:  # noqa: ASYNC110 - the stub counts what comes
        await asyncio.sleep(0)
    assert (await api.post(question()))[0] == 503
    stub(api).gate.set()
    assert [code for code, _ in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_malformed_question_is_an_error_and_the_api_server_admits_the_job(api: Api) -> None:
    assert (await api.post(b"{}"))[0] == 400
    assert stub(api).asked == 0


@pytest.mark.parametrize("answer", [True, False, None])
async def test_a_configmap_that_is_not_there_is_a_warning(api: Api, answer: bool | None) -> None:
    async def exists(namespace: str, name: str) -> bool:
        assert (namespace, name) == ("team", "code")
        if answer is None:
            raise OSError("the API server is away")
        return answer

    stub(api).admission = Admission(allowed=True, config_map="code")
    assert "warnings" not in (await api.post(question()))[1], "nobody can be asked yet"
    api.webhook.exists = exists
    said = (await api.post(question()))[1]
    warned = ["spec.code.configMap: no ConfigMap code in team yet; the pods wait for it"]
    assert said.get("warnings", []) == (warned if answer is False else [])


# -- the process


async def test_a_process_judges_and_is_replaced_when_it_dies_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    made = JudgeProcess(SETTINGS, seconds=30.0)
    try:
        first = await made.start()
        assert (await made.judge(question())).admission == Admission(allowed=True)
        refused = (await made.judge(question(roles=[]))).admission
        assert "spec.roles: has 0 items, at least 1" in refused.message
        with pytest.raises(UnjudgedError, match="could not read"):
            await made.judge(b"no JSON")
        first.kill()
        with pytest.raises(UnjudgedError, match="more memory"):
            await made.judge(question())
        assert (await made.judge(question())).admission.allowed, "a new one is there"
        second = await made.start()
        monkeypatch.setattr(process, "_answer", _hang)
        made._seconds = 0.01
        with pytest.raises(UnjudgedError, match=r"longer than 0\.01 s"):
            await made.judge(question())
        assert second.returncode is not None
    finally:
        await made.close()
        await made.close()


async def test_a_spec_that_is_nested_deeper_than_python_reads_is_refused() -> None:
    made = JudgeProcess(SETTINGS, seconds=30.0)
    deep = question(config={"a": 0}).replace(b'{"a": 0}', b'{"a":' * 9_900 + b"0" + b"}" * 9_900)
    try:
        refused = (await made.judge(deep)).admission
        assert "more than 100 levels" in refused.message
    finally:
        await made.close()


async def _hang(_process: object, _body: bytes) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def test_a_question_waits_for_the_busy_judge_no_longer_than_allowed() -> None:
    made = JudgeProcess(SETTINGS, seconds=0.01)
    await made._turn.acquire()
    with pytest.raises(UnjudgedError, match="busy with other requests"):
        await made.judge(question())


async def test_a_process_that_cannot_be_started_admits_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made = JudgeProcess(SETTINGS, seconds=5.0)
    monkeypatch.setattr(process.sys, "executable", "/no/python")
    with pytest.raises(UnjudgedError, match="being started"):
        await made.judge(question())
    await made.close()


def test_the_judge_answers_until_its_input_ends() -> None:
    settings = judge.loaded(judge.dumped(SETTINGS))
    assert settings == SETTINGS
    body, answers = question(), io.BytesIO()
    judge.serve(io.BytesIO(judge.LENGTH.pack(len(body)) + body), answers, settings)
    said = answers.getvalue()
    assert said[:4] == judge.LENGTH.pack(0)
    assert json.loads(said[8:]) == {
        "uid": "u-1",
        "version": "admission.k8s.io/v1",
        "namespace": "team",
        "admission": {"allowed": True, "message": "", "warnings": [], "config_map": ""},
    }


# -- the certificate


@pytest.mark.parametrize("year", [2027, 2060])
def test_the_expiry_of_a_certificate_is_read_before_and_after_2050(tmp_path: Path, year: int) -> None:
    """Up to 2049 the time has two digits of the year, then four."""
    until = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    assert expires(certify(tmp_path, until)) == until.timestamp()


def test_a_certificate_that_expired_is_served_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certify(tmp_path, datetime(2025, 1, 1, tzinfo=UTC))
    made = Certificate(tmp_path)
    assert made.load()
    assert made.days < 0
    assert made.load()
    (said,) = [one.message for one in caplog.records]
    assert re.match(r"the webhook's certificate expired \d+\.\d days ago, so the API server admits DLJobs", said)


def test_a_renewed_certificate_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    made = Certificate(tmp_path)
    assert (made.load(), made.days) == (False, 0.0)
    certify(tmp_path, datetime(2900, 1, 1, tzinfo=UTC))
    assert made.load()
    certify(tmp_path, datetime(2950, 1, 1, tzinfo=UTC))
    made.load()
    assert made.expires == datetime(2950, 1, 1, tzinfo=UTC).timestamp()
    (tmp_path / "tls.crt").write_text("nothing")
    assert made.load(), "what was good is served on"
    with pytest.raises(ValueError, match=r"X\.509"):
        expires(ssl.DER_cert_to_PEM_cert(b"\x30\x02\x05\x00"))


async def test_the_webhook_is_served_as_soon_as_there_is_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = Webhook(SETTINGS, Certificate(tmp_path), process=Stub())
    served, renewed = asyncio.Event(), asyncio.Event()

    async def serve(port: int, host: str = "") -> int:
        served.set()
        return port

    async def follow() -> None:
        renewed.set()

    monkeypatch.setattr(webhook, "serve", serve)
    monkeypatch.setattr(webhook.certificate, "follow", follow)
    task = asyncio.create_task(server.begin(webhook, 1, every=0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not served.is_set()
    certify(tmp_path, NOW + timedelta(days=36500))
    await task
    assert served.is_set()
    assert renewed.is_set()
