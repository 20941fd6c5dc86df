"""`dljob logs JOB --master` on a cluster: from where PrimeMaster is, and from what was kept."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fake_kube import FakeKube, add_head, add_job, add_saved_logs, logs_of

import dljob as api
from dljob.errors import UsageError
from dljob.kube.api import CONFIG_MAPS, Response

LOG, OLDER = ("", 0), ("", 1)


def entry(n: int) -> str:
    return f'{{"time": "2026-01-01T00:00:{n:02}.000Z", "level": "info", "message": "m{n}", "event": "Tick"}}\n'


def words(*numbers: int) -> str:
    return "".join(f"2026-01-01T00:00:{n:02}.000Z Tick: m{n}\n" for n in numbers)


@pytest.fixture
def living(kube: FakeKube) -> FakeKube:
    add_job(kube, phase="Running")
    add_head(kube)
    return kube


def test_the_log_of_a_living_job_comes_from_its_head(living, dljob):
    texts = {LOG: entry(2) + "no json\n" + entry(3)}
    living.head["logs"] = logs_of(texts, lambda _: 0)
    assert dljob("logs", "hello", "-k", "--master") == (0, f"{words(2)}no json\n{words(3)}", "")
    texts[OLDER] = entry(0) + entry(1)
    texts[LOG] = entry(2) + entry(3)
    assert dljob("logs", "hello", "-k", "--master")[1] == words(0, 1, 2, 3)
    assert dljob("logs", "hello", "-k", "--master", "--tail", "1")[1] == words(3)
    assert dljob("logs", "hello", "-k", "--master", "--tail", "3")[1] == words(1, 2, 3)
    assert dljob("logs", "hello", "-k", "--master", "--tail", "0")[1] == ""
    since = ("--since", "2026-01-01T00:00:02Z")
    assert dljob("logs", "hello", "-k", "--master", *since) == (0, words(2, 3), "")
    assert dljob("logs", "hello", "-k", "--master", *since, "--tail", "1")[1] == words(3)
    code, _, err = dljob("logs", "hello", "worker/0", "-k", "--master")
    assert (code, "--master excludes a role or rank" in err) == (2, True)


def test_a_handle_reads_the_masters_log(living):
    living.head["logs"] = logs_of({LOG: entry(1) + entry(2)})
    out = io.StringIO()
    handle = api.job("hello", kubernetes=True, namespace="team")
    handle.logs(master=True, tail=1, out=out)
    assert out.getvalue() == words(2)
    living.update("hello", phase="Succeeded")
    handle.logs(master=True, follow=True, out=out)
    assert out.getvalue() == words(2) + words(1, 2)
    with pytest.raises(UsageError, match="master=True excludes a role or rank"):
        handle.logs(master=True, role="worker")


def test_the_masters_log_is_followed_to_the_end_and_into_the_kept_one(living, dljob):
    texts = {LOG: entry(0) + entry(1)}
    turns = 0

    def head(query: dict[str, Any]) -> Any:
        nonlocal turns
        turns += 1
        if turns == 3:
            texts[LOG] += entry(2)
        if turns == 6:
            job = living.update("hello", phase="Succeeded")
            add_saved_logs(living, job, master=entry(1) + entry(2) + entry(3))
            living.head.clear()
        return logs_of(texts)(query)

    living.head["logs"] = head
    assert dljob("logs", "hello", "-k", "--master", "-f", "--tail", "1") == (0, words(1, 2, 3), "")


def test_the_kept_masters_log_of_an_ended_job_is_shown(kube, dljob):
    job = add_job(kube, phase="Failed")
    add_saved_logs(kube, job, worker_0="a\n")
    code, out, err = dljob("logs", "hello", "-k", "--master")
    assert (code, out, "no log of PrimeMaster of job hello in namespace team" in err) == (3, "", True)
    add_saved_logs(kube, job, worker_0="a\n", master=entry(1) + entry(2))
    assert "master.log" in kube.one(CONFIG_MAPS, "hello-logs")["data"]
    assert dljob("logs", "hello", "-k", "--master") == (0, words(1, 2), "")
    assert dljob("logs", "hello", "-k", "--master", "--since", "2026-01-01T00:00:02Z") == (0, words(2), "")
    assert dljob("logs", "hello", "-k", "--master", "-f", "--tail", "1")[1] == words(1, 2), "all that was kept"
    assert dljob("logs", "hello", "-k")[1] == "[worker/0] a\n", "it is no rank's"


@pytest.mark.parametrize("more", [(), ("--tail", "2"), ("--since", "10m"), ("-f",)])
def test_an_older_image_is_told_with_the_version_it_needs(more, living, dljob):
    living.head["logs"] = lambda _query: {"logs": {"worker/0": "a"}, "cut": []}
    living.head["version"] = lambda _query: {"dljob": "0.0.9"}
    code, out, err = dljob("logs", "hello", "-k", "--master", *more)
    assert (code, out) == (2, "")
    assert "its dljob (0.0.9) is too old to give PrimeMaster's log: that needs 0.1.0 or newer" in err


def test_a_master_whose_node_is_gone_is_told(living, dljob):
    living.head["logs"] = lambda _query: Response(503, b'{"error": "the log on node ab cannot be read"}')
    code, _, err = dljob("logs", "hello", "-k", "--master")
    assert (code, "the log on node ab cannot be read" in err) == (4, True)
