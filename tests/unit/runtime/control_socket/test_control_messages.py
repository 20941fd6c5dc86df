"""Requests and answers of the control socket: nothing but what it may be asked reaches PrimeMaster."""

from __future__ import annotations

import json

import pytest

from dljob.errors import CheckpointError, DeadlineError, NotFoundError, UnreachableError, UsageError
from dljob.runtime.control_socket.messages import CALLS, answer, parse, refusal, request, result

UID = "a" * 32


def test_a_request_arrives_as_it_was_sent():
    assert parse(request(UID, "command", ("1", "scale", "actor=2", "pid 3")), UID) == (
        "command",
        ["1", "scale", "actor=2", "pid 3"],
    )
    assert parse(request(UID, "status", (2**53, 0)), UID) == ("status", [2**53, 0])


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"status\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"[1]\n",
        json.dumps({"job": UID}).encode(),
        json.dumps({"job": UID, "call": "_run", "args": []}).encode(),
        json.dumps({"job": UID, "call": ["status"], "args": []}).encode(),
        json.dumps({"job": UID, "call": "pids", "args": {}}).encode(),
        json.dumps({"job": UID, "call": "pids", "args": [1]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [1.5, 0]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [True, 0]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [-1, 0]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [2**64, 0]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [0, float("nan")]}).encode(),
        json.dumps({"job": UID, "call": "status", "args": [0, float("inf")]}).encode(),
        json.dumps({"job": UID, "call": "stacks", "args": [None]}).encode(),
        json.dumps({"job": UID, "call": "stacks", "args": ["a\nb"]}).encode(),
        json.dumps({"job": UID, "call": "stacks", "args": ["\udcff"]}).encode(),
    ],
)
def test_a_malformed_request_is_refused(line):
    with pytest.raises(UsageError):
        parse(line, UID)


def test_a_request_about_another_job_is_refused():
    with pytest.raises(UnreachableError, match=UID):
        parse(request("b" * 32, "pids", ()), UID)


def test_a_request_is_at_most_a_mebibyte_long():
    request(UID, "stacks", ("x" * (2**20 - 100),))
    with pytest.raises(UsageError, match="1048576 are allowed"):
        request(UID, "stacks", ("x" * 2**20,))


@pytest.mark.parametrize("value", [None, 1, "x\ny", {"a": [1.5]}, [], float("inf")])
def test_an_answer_arrives_as_it_was_sent(value):
    sent = answer(value)
    assert sent.count(b"\n") == 1
    assert result(sent) == value


@pytest.mark.parametrize("kind", [DeadlineError, NotFoundError, UnreachableError, UsageError])
def test_an_error_of_ours_arrives_as_itself(kind):
    with pytest.raises(kind) as found:
        result(refusal(kind("what", hint="do")))
    assert (found.value.message, found.value.hint) == ("what", "do")


@pytest.mark.parametrize(("error", "words"), [(CheckpointError("no"), "no"), (KeyError("x"), "KeyError: 'x'")])
def test_any_other_error_is_that_the_job_cannot_be_asked(error, words):
    with pytest.raises(UnreachableError, match=words):
        result(refusal(error))


@pytest.mark.parametrize("line", [b"", b"hello\n", b"[]\n", b"{}\n", b'{"error": "SystemExit"}\n', b"\xff\n"])
def test_a_malformed_answer_is_refused(line):
    with pytest.raises(ValueError, match=r"."):
        result(line)


def test_every_call_is_a_method_of_both_connections():
    from dljob.runtime.control_socket.client import LocalConnection
    from dljob.runtime.job.launch import JobConnection

    for call in CALLS:
        assert callable(getattr(LocalConnection, call))
        assert callable(getattr(JobConnection, call))
