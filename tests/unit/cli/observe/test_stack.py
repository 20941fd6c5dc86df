"""`dljob stack`: whose threads are shown."""

from __future__ import annotations

from dljob.cli.commands.observe.stack import AWAITS, users_threads

USERS = """thread 7 "MainThread" idle
    barrier (/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:6614)
    prepare (/home/me/train.py:13)
    <module> (/home/me/train.py:18)"""
CALLERS = "    main (/opt/venv/lib/python3.11/site-packages/dljob/runtime/worker/forkserver.py:228)"
OURS = """thread 9 "dljob-link" idle
    RankLink._read (/src/workers/dljob/runtime/process/rank_link.py:198)
    Thread.run (/usr/lib/python3.11/threading.py:982)"""


def test_threads_of_the_user_s_are_shown_and_the_others_are_counted():
    shown = users_threads(f"{USERS}\n{CALLERS}\n{OURS}\n{OURS}\n")
    assert shown == f"{USERS}\n2 threads of libraries: --all shows them"
    assert users_threads(f"{OURS}\n{USERS}") == f"{USERS}\n1 thread of libraries: --all shows them"
    assert users_threads(USERS) == USERS


def test_frames_of_a_call_that_users_code_waits_for_are_one_row():
    futures = "/opt/venv/lib/python3.11/site-packages/dljob/runtime/rpc/futures.py"
    waits = ["wait (/usr/lib/python3.11/threading.py:324)", f"fetch ({futures}:440)", f"result ({futures}:199)"]
    title, run = 'thread 7 "user" idle at train.py:13 in run', "    run (/home/me/train.py:13)"
    shown = users_threads("\n".join([title, *(f"    {row}" for row in waits), run, CALLERS]))
    assert shown.splitlines() == [title, "    ... 3 frames of dljob in which it waits: --all shows them", run]


def test_where_no_thread_runs_the_user_s_code_it_is_said():
    assert users_threads(f"process 7 is stopped\n{OURS}\n{OURS}\n").splitlines() == [
        "process 7 is stopped",
        f"no thread is in your code: the rank is idle, or {AWAITS}",
        "2 threads of libraries: --all shows them",
    ]
    assert users_threads("its node does not answer") == "its node does not answer"
