"""How ends become outcomes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import sysconfig
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.errors import JobFailedError
from dljob.master.state.causes import classify
from dljob.master.state.views import Reason
from dljob.runtime.process import outcome
from dljob.telemetry.evidence import Source

HERE = str(Path(__file__).parent)


def caught(function, *args):
    try:
        function(*args)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def user_code():
    return int("x")


def through_library():
    import json

    json.loads("{")


def test_frame_is_relative_to_the_codes_folder():
    error = caught(user_code)
    assert outcome.user_frame(error, HERE).startswith("test_outcome.py:")
    assert outcome.user_frame(error, HERE).endswith(" in user_code")


def test_library_frames_are_not_the_users():
    assert outcome.user_frame(caught(through_library), HERE).endswith("in through_library")


def parse_line(line):
    return json.loads(line)  # fails


def map_in_pool(lines):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(parse_line, lines)


def map_in_executor(lines):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(parse_line, lines))


def load_batch(lines):
    try:
        parse_line(lines[0])
    except ValueError:  # as torch's DataLoader raises again what its worker has caught
        text = "".join(traceback.format_exception(*sys.exc_info())).replace(
            "  File", "  # library\n" * 500 + "  File", 1
        )
        raise ValueError(f"Caught ValueError in DataLoader worker process 0.\nOriginal {text}") from None


@pytest.mark.parametrize("parent", [map_in_pool, map_in_executor, load_batch])
def test_an_error_of_a_child_process_is_put_at_the_childs_line(parent):
    error = caught(parent, ["{"])
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# fails" in text)
    assert outcome.from_exception(error, code_dir=HERE, phase="run").frame == f"test_outcome.py:{line} in parse_line"


@pytest.mark.parametrize("message", ["no", 'File "x.py", line 3, in f', "Original Traceback (most recent call last):"])
def test_an_error_without_a_childs_frames_stays_at_its_own_line(message):
    def raise_message():
        raise ValueError(message)

    assert "in raise_message" in outcome.from_exception(caught(raise_message), code_dir=HERE, phase="run").frame


def test_frames_of_dljob_are_left_out_of_the_traceback():
    from dljob.runtime.process.entrypoint import resolve

    error = caught(resolve, "no_such_module.x")
    assert "entrypoint.py" not in outcome.user_frame(error, HERE)


def test_syntax_error_names_its_own_line(tmp_path):
    error = caught(compile, "x = (", str(tmp_path / "a.py"), "exec")
    assert outcome.user_frame(error, str(tmp_path)) == "a.py:1 in <module>"


@pytest.mark.parametrize("kind", [ValueError, JobFailedError])
def test_a_long_message_keeps_its_beginning_and_its_end(kind):
    def fail():
        raise kind(f"job eval failed: {'x' * 2000}: it ended so twice, with no progress between")

    message = outcome.from_exception(caught(fail), code_dir=HERE, phase="run").message
    assert message.startswith("job eval failed: xxx")
    assert message.endswith("x: it ended so twice, with no progress between (in run)")
    assert len(message.removesuffix(" (in run)")) == outcome.MESSAGE


def test_an_exceptions_message_is_escaped_to_valid_text():
    def lists_a_folder():
        raise ValueError("caf\udce9.bin is no sample")

    said = outcome.from_exception(caught(lists_a_folder), code_dir=HERE, phase="run")
    assert said.message == "caf\\udce9.bin is no sample (in run)"
    assert said.detail.endswith("ValueError: caf\\udce9.bin is no sample\n")
    assert said.detail.encode()


def test_exception_whose_text_raises_is_still_told():
    class BadError(Exception):
        def __str__(self):
            raise RuntimeError

    def raises():
        raise BadError

    ended = outcome.from_exception(caught(raises), code_dir=HERE, phase="run")
    assert ended.error_type == "BadError"
    assert "BadError" in ended.message


@pytest.mark.parametrize(
    ("code", "ok", "number"), [(None, True, 0), (0, True, 0), (3, False, 3), (256 + 4, False, 4), ("no", False, 1)]
)
def test_sys_exit_gives_its_exit_code(code, ok, number):
    ended = outcome.from_exception(SystemExit(code), code_dir=HERE, phase="run")
    assert (ended.ok, ended.code) == (ok, number)


@pytest.mark.parametrize(
    ("status", "ok", "code", "reason"),
    [
        (0, True, 0, None),
        (3 << 8, False, 3, Reason.USER_ERROR),
        (int(signal.SIGKILL), False, 137, Reason.UNKNOWN),
        (int(signal.SIGTERM), False, 143, Reason.UNKNOWN),
        (int(signal.SIGSEGV) | 0x80, False, 139, Reason.USER_ERROR),
    ],
)
def test_a_wait_status_becomes_code_and_reason(status, ok, code, reason):
    ended = outcome.from_status(status, detail="the log")
    assert (ended.ok, ended.code, ended.reason) == (ok, code, reason)
    assert ended.detail == ("" if ok else "the log")


def test_long_tracebacks_keep_their_end():
    text = "\n".join(f"line {i}" for i in range(5000))
    clipped = outcome.clip(text)
    assert len(clipped.encode()) <= outcome.DETAIL_BYTES
    assert clipped.startswith("...\nline ")
    assert clipped.endswith("line 4999")


def test_clip_of_one_endless_line_keeps_its_end():
    assert outcome.clip("x" * 20_000 + "end").endswith("xend")


@pytest.mark.parametrize("value", [object(), {1}, {"a": b"x"}, "x" * 9000])
def test_a_result_that_is_no_small_json_is_refused(value):
    with pytest.raises(outcome.ResultError, match=r"run\(\) returned"):
        outcome.encode_result(value)


def test_result_that_contains_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(outcome.ResultError, match="list"):
        outcome.encode_result(loop)


def test_a_module_that_is_nowhere_says_where_it_was_looked_for(tmp_path):
    bare = caught(importlib.import_module, "no_such_module_anywhere")
    bare.__traceback__ = bare.__traceback__.tb_next.tb_next  # as a host sees it: no frame of this file
    ended = outcome.from_exception(bare, code_dir=str(tmp_path), phase="import", fatal=True)
    assert ended.frame == ""
    assert ended.message.endswith(f"(in import); it is looked for in {tmp_path} and among the installed packages")


def test_libraries_below_the_codes_folder_are_not_the_users():
    python = Path(sysconfig.get_paths()["purelib"])
    home = str(python.parents[2])
    assert not outcome.is_users(str(python / "torch" / "nn.py"), home)
    assert outcome.is_users(f"{home}/train.py", home)
    assert not outcome.is_users(outcome.__file__, str(Path(outcome.__file__).parents[4]))


def chained(*, explicit: bool):
    try:
        user_code()
    except ValueError as error:
        if explicit:
            raise RuntimeError("see above") from error
        raise KeyError("lr")  # noqa: B904 - as in a handler that fails itself


def grouped():
    try:
        user_code()
    except ValueError as error:
        raise ExceptionGroup("two of a kind", [error, KeyError(1)]) from None


def exits():
    try:
        user_code()
    except ValueError:
        sys.exit(4)


def says_it_again():
    try:
        user_code()
    except ValueError as error:
        raise RuntimeError(f"while reading: {error}")  # noqa: B904 - as libraries do


def clues(function, *args, **more):
    ended = outcome.from_exception(caught(lambda: function(*args, **more)), code_dir=HERE, phase="run")
    return [(clue.source, clue.text.partition(" at ")[0]) for clue in ended.clues]


def test_a_chain_is_told_by_its_first_exception():
    root = "ValueError: invalid literal for int() with base 10: 'x'"
    assert clues(chained, explicit=True) == [("cause", root)]
    assert clues(chained, explicit=False) == [("handled", root)]
    assert clues(grouped) == [("cause", root)]
    assert clues(exits) == [("cause", root)]
    assert clues(says_it_again) == []
    assert clues(user_code) == []


def test_the_place_of_the_first_exception_is_the_users():
    (clue,) = outcome.from_exception(caught(exits), code_dir=HERE, phase="run").clues
    assert clue.text.endswith(" in user_code")
    assert outcome.describe_error(ValueError("x"), HERE) == "ValueError: x"
    assert outcome.describe_error(ValueError(), HERE) == "ValueError"


def test_a_failed_command_is_told_by_its_own_last_lines(tmp_path):
    def run(**more):
        subprocess.run([sys.executable, "-c", "import sys; print('out'); sys.exit('no\\nlicence')"], check=True, **more)

    assert clues(run, stderr=subprocess.PIPE) == [("output", "no"), ("output", "licence")]
    assert clues(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)[-1] == ("output", "licence")
    log = tmp_path / "w-0.log"
    with log.open("wb") as file, kept_stderr():
        os.dup2(file.fileno(), 2)
        assert clues(run) == [("output", "no"), ("output", "licence")]


@contextlib.contextmanager
def kept_stderr():
    copy = os.dup(2)
    try:
        yield
    finally:
        os.dup2(copy, 2)
        os.close(copy)


CRASH = f"""step 29
terminate called after throwing an instance of 'std::runtime_error'
  what():  7 of 32000
Fatal Python error: Aborted

Current thread 0x00007fae64c51b80 (most recent call first):
  File "/usr/lib/python3/dist-packages/tokens.py", line 4 in encode
  File "{HERE}/train.py", line 9 in main
  File "{outcome.__file__}", line 142 in body

Extension modules: numpy (total: 1)
"""


def test_a_crash_is_told_by_its_cpp_exception_and_the_users_frame():
    ended = outcome.with_log(outcome.from_status(int(signal.SIGABRT)), CRASH, HERE)
    assert (ended.error_type, ended.message) == ("std::runtime_error", "7 of 32000; ended by SIGABRT")
    assert (ended.frame, ended.code) == ("train.py:9 in main", 134)
    assert "Extension" not in ended.detail
    segv = outcome.with_log(outcome.from_status(int(signal.SIGSEGV)), CRASH, HERE)
    assert (segv.error_type, segv.message, segv.frame) == ("", "ended by SIGSEGV", "train.py:9 in main")
    freed = outcome.with_log(outcome.from_status(int(signal.SIGABRT)), "free(): invalid pointer\n", HERE)
    assert (freed.message, freed.frame) == ("ended by SIGABRT: free(): invalid pointer", "")


TRACEBACK = f"""Traceback (most recent call last):
  File "{HERE}/train.py", line 9, in main
torch.OutOfMemoryError: CUDA out of memory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "{HERE}/train.py", line 5, in step
KeyError
"""


def test_the_traceback_that_ends_the_log_is_that_of_a_command_with_exit_code_1():
    def ended(code, *, command):
        return outcome.with_log(outcome.from_status(code << 8), TRACEBACK, HERE, command=command)

    told = ended(1, command=True)
    assert (told.error_type, told.message, told.frame) == ("KeyError", "(in its log)", "train.py:5 in step")
    assert [clue.text for clue in told.clues] == ["OutOfMemoryError: CUDA out of memory at train.py:9 in main"]
    for silent in (ended(1, command=False), ended(5, command=True)):
        assert (silent.error_type, silent.frame, silent.clues) == ("", "", ())
        assert silent.detail == TRACEBACK


def test_an_outcome_comes_back_from_its_json():
    ended = outcome.from_exception(caught(exits), code_dir=HERE, phase="run")
    assert outcome.decode_outcome(json.loads(json.dumps(dataclasses.asdict(ended)))) == ended
    assert outcome.decode_outcome({"ok": True}).ok


def test_an_error_out_of_a_handler_of_sigterm_is_an_end_from_outside():
    def on_signal(number, frame):
        raise RuntimeError("training was interrupted")

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        error = caught(os.kill, os.getpid(), signal.SIGTERM)
        found = outcome.from_exception(error, code_dir=HERE, phase="run")
        later = outcome.from_exception(caught(user_code), code_dir=HERE, phase="run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (found.reason, found.code) == (Reason.KILLED, 1)
    assert found.message == "training was interrupted (in run); raised in its handler of SIGTERM"
    assert later.reason is Reason.USER_ERROR


def test_an_error_of_a_loaders_worker_is_told_by_itself():
    text = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/lib/worker.py", line 375, in _worker_loop\n    data = fetcher.fetch(index)\nKeyError: 33\n'
    )
    told = outcome.from_exception(type("KeyError", (Exception,), {})(text), code_dir="", phase="run")
    assert told.message.startswith("33 (Caught KeyError in DataLoader worker process 0)")


SPAWNED = f"""\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/w/train.py", line 10, in <module>
    for tokens in pool.map(tokenize, ["a b c", "d e"]):
RuntimeError:{" "}
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.

        This probably means that you are not using fork
"""
BROKEN_POOL = "A process in the process pool was terminated abruptly while the future was running or pending."


def test_the_error_of_a_lost_child_is_read_from_the_log(monkeypatch):
    monkeypatch.setattr(outcome, "_end_of_own_log", lambda: f"Traceback (most recent call last):\n{SPAWNED}")
    said = outcome.from_exception(BrokenProcessPool(BROKEN_POOL), code_dir="/w", phase="run")
    (clue,) = said.clues
    assert clue.source == Source.CHILD_ERROR
    begin = "RuntimeError: An attempt has been made to start a new process before the current process has finished"
    assert clue.text == f"{begin} its bootstrapping phase at train.py:10 in <module>"
    assert (classify(said).rule, classify(said).reason) == ("child-raised", Reason.USER_ERROR)
    assert not outcome.from_exception(RuntimeError("another"), code_dir="/w", phase="run").clues


def test_a_lost_child_without_words_stays_a_lost_child(monkeypatch):
    monkeypatch.setattr(outcome, "_end_of_own_log", lambda: "Traceback (most recent call last):\n  cut\n")
    said = outcome.from_exception(BrokenProcessPool(BROKEN_POOL), code_dir="/w", phase="run")
    assert (said.clues, classify(said).rule) == ((), "child-lost")


FULL_DISK = "no room is left on /data (ext4, 0 of 9 MiB free); its log says: [Errno 28] No space left on device"
FULL_LOG = "no room is left on the volume of its log (0 KiB free): programs that write to it fail"


@pytest.mark.parametrize(
    ("source", "words", "error", "children", "is_disk"),
    [
        ("describe", FULL_DISK, EOFError("cut"), 0, True),
        ("describe", FULL_DISK, SystemExit(3), 0, True),
        ("describe", FULL_DISK, KeyError("a"), 0, False),
        ("describe_log", FULL_LOG, subprocess.CalledProcessError(1, ["sh"]), 1, True),
        ("describe_log", FULL_LOG, SystemExit(1), 1, True),
        ("describe_log", FULL_LOG, BrokenProcessPool(BROKEN_POOL), 1, True),
        ("describe_log", FULL_LOG, RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), 1, True),
        ("describe_log", FULL_LOG, RuntimeError("the worker ended with 1"), 1, True),
        ("describe_log", FULL_LOG, RuntimeError("the worker ended with 1"), 0, False),
        ("describe_log", FULL_LOG, KeyError("a"), 1, False),
    ],
)
def test_a_full_disk_is_the_cause_of_what_is_cut_off_and_of_a_child_that_failed(
    source, words, error, children, is_disk, *, monkeypatch
):
    monkeypatch.setattr(outcome.full_disks, source, lambda _: words)
    monkeypatch.setattr(outcome.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=9 * children))
    end = outcome.from_exception(error, code_dir="/w", phase="run")
    assert end.message.endswith(words) is is_disk
    assert classify(end).reason is (Reason.DISK if is_disk else Reason.USER_ERROR)


def test_an_error_has_the_dead_connection_that_was_seen_before_it(monkeypatch):
    words = "what it sent to 10.0.0.7:4 is not acknowledged for 28 s"
    monkeypatch.setattr(outcome.own_sockets, "describe_dead_links", lambda: words)
    said = outcome.from_exception(RuntimeError("Timed out"), code_dir="/w", phase="run")
    assert said.message == f"Timed out (in run); {words}"
    assert classify(said).reason is Reason.NETWORK


WORKER_LOG = """
[2026-12-01 11:08:22,210 E 29507 29507] (raylet) worker_pool.cc:660: Some workers have not registered
Traceback (most recent call last):
  File "/lib/ray/_private/workers/default_worker.py", line 8, in <module>
    import ray
  File "/mine/lib/msgpack.py", line 1, in <module>
    raise RuntimeError("made for another Python")
RuntimeError: made for another Python
"""


@pytest.mark.parametrize(
    ("tail", "env", "message"),
    [
        (
            WORKER_LOG,
            {"PYTHONPATH": "/a:/mine/lib"},
            "made for another Python (a worker of Ray cannot start with /mine/lib",
        ),
        (
            "Fatal Python error: init_fs_encoding: no codec\n",
            {"PYTHONHOME": "/nope"},
            "Fatal Python error: init_fs_encoding: no codec (a worker of Ray cannot start with /nope",
        ),
        (WORKER_LOG, {"PYTHONPATH": "/mine/library:/mine/li"}, ""),
        (WORKER_LOG, {"PYTHONPATH": "${PYTHONPATH}"}, ""),
        ("Fatal Python error: init_fs_encoding: no codec\n", {"PYTHONPATH": "/nope"}, ""),
        ("", {"PYTHONPATH": "/mine/lib"}, ""),
    ],
)
def test_a_worker_of_ray_that_cannot_start_is_the_roles_where_its_variables_are_to_blame(tail, env, message):
    found = outcome.from_worker_start(tail, env)
    assert (found is not None) == bool(message)
    if found is not None:
        assert (found.reason, found.fatal, found.message.startswith(message)) == (Reason.IMPORT_ERROR, True, True)
        if tail is WORKER_LOG:
            assert (found.error_type, found.frame) == ("RuntimeError", "/mine/lib/msgpack.py:1 in <module>")
