"""Readings of outside witnesses over real sockets: good answers, and those of servers that stall, flood or lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dljob.plan.witnesses import PRESETS, DumpPlan, WitnessPlan
from dljob.runtime.node import witnesses
from dljob.runtime.node.witnesses import NoReadingError, WitnessReader, fetched, parsed

GOLDEN = Path(__file__).parents[3] / "golden" / "witnesses"
PLAN = WitnessPlan("w", 0, "/metrics", "grad_norm", "SilentCorruption", above=True, value=1.0, for_s=0)

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """Serve every request by `answer`; yield the port."""
    members = {"do_GET": answer, "do_POST": answer, "log_message": lambda *_: None}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Monitor", (BaseHTTPRequestHandler,), members))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(text: str | bytes, status: int = 200, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(text if isinstance(text, bytes) else text.encode())

    return answer


def why_not(answer: Answer, within_s: float = 30.0) -> str:
    with serving(answer) as port, pytest.raises(NoReadingError) as raised:
        asyncio.run(fetched(port, "/metrics", within_s=within_s))
    return str(raised.value).removeprefix(f"127.0.0.1:{port}")


def test_an_answer_of_a_gigabyte_is_left_after_one_mebibyte():
    sent = 0

    def flood(request: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        request.send_response(200)
        request.send_header("content-length", str(1 << 30))
        request.end_headers()
        try:
            for _ in range(1 << 14):
                sent += request.wfile.write(b"x" * (1 << 16))
        except OSError:
            pass

    assert why_not(flood) == "/metrics: an answer of more than 1 MiB"
    assert sent < 1 << 29, "the connection was closed long before the end"


def test_a_server_that_never_answers_is_left_after_its_time():
    over = threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> None:
        over.wait()

    def drips(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.01):
            try:
                request.wfile.write(b"x: y\r\n")
            except OSError:
                return

    for answer in (silent, drips):
        over.clear()
        with serving(answer) as port:
            try:
                with pytest.raises(NoReadingError, match=r"no answer within 0.2 s|no HTTP answer"):
                    asyncio.run(fetched(port, "/", within_s=0.2))
            finally:
                over.set()


def test_a_redirect_is_not_followed_and_an_error_is_no_reading():
    asked: list[str] = []
    with serving(lambda request: asked.append(request.path)) as elsewhere:
        moved = says("", 302, location=f"http://127.0.0.1:{elsewhere}/secret")
        assert why_not(moved) == "/metrics: status 302, not 200"
    assert not asked
    assert why_not(says("grad_norm 3", 500)) == "/metrics: status 500, not 200"
    assert "no HTTP answer" in why_not(lambda request: request.wfile.write(b"SSH-2.0-x\r\n\r\n"))
    with pytest.raises(NoReadingError, match="Connection refused"):
        asyncio.run(fetched(1, "/"))


def test_only_lines_of_the_metric_are_parsed():
    text = b'# TYPE grad_norm gauge\ngrad_norm_max{} }{ broken\ngrad_norm{rank="1",b="x"} 2.5\ngrad_norm 1\n\xff\xfe\n'
    assert parsed("grad_norm", text) == (((("b", "x"), ("rank", "1")), 2.5), ((), 1.0))
    assert parsed("absent", text) == ()
    with pytest.raises(NoReadingError, match="a line of grad_norm cannot be read"):
        parsed("grad_norm", b'grad_norm{rank="1" 2\n')
    with pytest.raises(NoReadingError, match="a line of grad_norm cannot be read"):
        parsed("grad_norm", b"grad_norm much\n")


def readings(plan: WitnessPlan, *texts: str) -> list[tuple[object, object]]:
    """Return sightings and troubles after each of these answers in turn."""
    left, found, given = list(texts), [], threading.Semaphore(0)

    def answer(request: BaseHTTPRequestHandler) -> None:
        says(left.pop(0) if left else texts[-1])(request)
        given.release()

    with serving(answer) as port:
        reader = WitnessReader([replace(plan, port=port)], Path("/nowhere"))
        try:
            for _ in texts:
                given.acquire()
                given.acquire()  # the next request: the answer before it has been taken in
                found.append((tuple((s.value, s.labels) for s in reader.sightings()), reader.troubles()))
        finally:
            reader.close()
    return found


def test_a_reader_tells_what_holds_and_names_a_witness_that_cannot_be_read(monkeypatch):
    monkeypatch.setattr(witnesses, "EVERY_S", 0.0)
    monkeypatch.setattr(witnesses, "WITHIN_S", 30.0)
    ((found, why),) = readings(PLAN, 'grad_norm{rank="1"} 2.5\ngrad_norm{rank="0"} 0.5\n')
    assert (found, why) == (((2.5, (("rank", "1"),)),), ())
    ((found, why),) = readings(PLAN, "grad_norm NaN\n")
    assert (found, why) == ((), ()), "it is readable, and says nothing"
    ((found, why),) = readings(PLAN, "other 3\n")
    assert (found, why) == ((), (("w", "it has no metric grad_norm"),))
    ((found, why),) = readings(replace(PLAN, for_s=3600), "grad_norm 9\n")
    assert found == (), "not for long enough yet"


def test_a_reader_without_witnesses_starts_no_thread(tmp_path):
    before = threading.active_count()
    reader = WitnessReader([], tmp_path)
    assert (threading.active_count(), reader.sightings(), reader.troubles()) == (before, (), ())
    reader.close()


def test_a_dump_is_asked_for_with_its_body_and_the_folder_of_the_job(tmp_path):
    bodies: list[bytes] = []

    def take(request: BaseHTTPRequestHandler) -> None:
        bodies.append(request.rfile.read(int(request.headers.get("content-length") or 0)))
        says("trace")(request)

    with serving(take) as port:
        plan = replace(PLAN, port=port, dump=DumpPlan(port, "/dump", '{"dump_path": "{dir}"}'))
        reader = WitnessReader([plan, replace(PLAN, name="none", port=port)], tmp_path / "dumps")
        try:
            assert reader.dump("w") == b"trace"
            with pytest.raises(NoReadingError, match="it has no dump"):
                reader.dump("none")
        finally:
            reader.close()
    assert f'{{"dump_path": "{tmp_path / "dumps"}"}}'.encode() in bodies
    assert (tmp_path / "dumps").is_dir()


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("xpu-timer", {"0", "2", "5"}), ("npu-exporter", set()), ("dcgm", {"1"})],
)
def test_a_preset_reads_the_recorded_answer_of_its_project(name, ranks):
    """Source and commit of each are in NOTICE; that of dcgm was written from its documentation."""
    plan = PRESETS[name]
    samples = parsed(plan.metric, (GOLDEN / f"{name}.txt").read_bytes())
    label = {"xpu-timer": "rank", "npu-exporter": "id", "dcgm": "gpu"}[name]
    assert len(samples) >= 2
    assert {dict(labels)[label] for labels, value in samples if plan.says(value)} == ranks
