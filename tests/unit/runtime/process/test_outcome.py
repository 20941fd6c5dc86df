"""How ends become outcomes."""

from __future__ import annotations

import importlib
import signal
import sysconfig
from pathlib import Path

import pytest

from dljob.master.state.views import Reason
from dljob.runtime.process import outcome

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


def test_frames_of_dljob_are_left_out_of_the_traceback():
    from dljob.runtime.process.entrypoint import resolve

    error = caught(resolve, "no_such_module.x")
    assert "entrypoint.py" not in outcome.user_frame(error, HERE)


def test_syntax_error_names_its_own_line(tmp_path):
    error = caught(compile, "x = (", str(tmp_path / "a.py"), "exec")
    assert outcome.user_frame(error, str(tmp_path)) == "a.py:1 in <module>"


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
