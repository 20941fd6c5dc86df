"""What a process wrote as it died, found at the end of its log and nowhere else."""

from __future__ import annotations

import pytest

from dljob.master.state.last_words import last_line, read_crash, read_traceback

STACK = """Fatal Python error: Aborted

Current thread 0x00007fae64c51b80 [python] (most recent call first):
  File "/lib/numpy/core.py", line 40 in call
  File "/job/train.py", line 4 in tokenize
  File "/job/train.py", line 9 in <module>

Thread 0x00007fea6dc0eb80 (most recent call first):
  File "/job/other.py", line 5 in wait

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
THROWN = """terminate called after throwing an instance of 'std::runtime_error'
  what():  tokens of the vocabulary: 7 of 32000
"""
NO_PYTHON = """Fatal Python error: Aborted

Thread 0x00007fea6dc0eb80 (most recent call first):
  File "/job/reader.py", line 5 in wait

Thread 0x00007fae64c51b80 (most recent call first):
  File "/job/train.py", line 6 in step
"""

RAY = """*** SIGABRT received at time=1796053639 on cpu 1 ***
PC: @     0x7f5488785ad8  (unknown)  (unknown)
    @     0x7f548865a050  (unknown)  (unknown)
[2026-11-30 15:47:19,946 E 224 428] logging.cc:474: *** SIGABRT received at time=1796053639 on cpu 1 ***
[2026-11-30 15:47:19,946 E 224 428] logging.cc:474: PC: @     0x7f5488785ad8  (unknown)  (unknown)
[2026-11-30 15:47:19,947 E 224 428] logging.cc:474:     @     0x7f548865a050  (unknown)  (unknown)
Fatal Python error: Aborted

Stack (most recent call first):
  File "/lib/ctypes/__init__.py", line 519 in string_at
  File "/job/train.py", line 4 in load

Extension modules: numpy._core._multiarray_umath (total: 1)
"""
"""The dump of a worker of Ray's, which has the native stack first, and that of no other thread."""


def users(file: str) -> bool:
    return file.startswith("/job/")


def crash(tail: str, code: int = 134):
    return read_crash(tail, code, users)


def test_a_cpp_exception_is_told_with_the_stack_of_its_thread() -> None:
    words = crash(f"step 29\n{THROWN}{STACK}")
    assert (words.error_type, words.message) == ("std::runtime_error", "tokens of the vocabulary: 7 of 32000")
    assert [(frame.file, frame.line, frame.function) for frame in words.stack][1] == ("/job/train.py", 4, "tokenize")
    assert len(words.stack) == 3
    assert words.log.endswith('line 4 in tokenize\n  File "/job/train.py", line 9 in <module>')
    assert "Extension modules" not in words.log
    assert "other.py" not in words.log


def test_where_no_thread_of_python_crashed_the_main_thread_is_shown() -> None:
    assert crash(NO_PYTHON).stack[0].file == "/job/train.py"
    assert crash("Fatal Python error: Aborted\n\n<no Python frame>\n").stack == ()


@pytest.mark.parametrize(
    ("tail", "error_type", "message"),
    [
        ("libc++abi: terminating due to uncaught exception of type std::bad_alloc: none\n", "std::bad_alloc", "none"),
        ("libc++abi: terminating due to uncaught exception of type std::bad_alloc\n", "std::bad_alloc", ""),
        ("terminate called after throwing an instance of 'int'\n", "int", ""),
        (
            "terminate called after throwing an instance of 'gloo::E'\n  what():  [fail at /w/a/pair.cc:464] 4\n",
            "gloo::E",
            "[fail at pair.cc:464] 4",
        ),
        ("double free or corruption (!prev)\n", "", "double free or corruption (!prev)"),
        ("m: a.c:7: f: Assertion `n > 0' failed.\n", "", "m: a.c:7: f: Assertion `n > 0' failed."),
        ("[Rank 1] Watchdog caught collective operation timeout: W\n", "c10::DistBackendError", None),
        ("double free or corruption\n" + "step\n" * 5, "", ""),
        ("all is well\n", "", ""),
        ("", "", ""),
    ],
)
def test_what_runtimes_write_before_an_abort_counts_near_it(tail: str, error_type: str, message: str | None) -> None:
    for stack in ("", STACK, RAY):
        words = crash(tail + stack)
        assert words.error_type == error_type
        assert words.message == (tail.strip() if message is None else message)


def test_the_stack_of_a_worker_of_ray_names_the_line_that_crashed() -> None:
    assert [(frame.file, frame.line) for frame in crash(RAY, 139).stack][1:] == [("/job/train.py", 4)]


def test_words_of_an_abort_count_for_no_other_signal() -> None:
    words = crash(THROWN + STACK, 139)
    assert (words.error_type, words.message) == ("", "")
    assert words.stack[1].line == 4


RAISED = """Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    main()
  File "/job/data.py", line 3, in load
    ~~~^^^^
KeyError: 'labels'
"""
CHAINED = f"""{RAISED}
The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 7, in main
torch.AcceleratorError: see above
CUDA kernel errors might be asynchronously reported
"""
LAUNCHED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 7, in main
[rank1]: ValueError: bad
step 7
Traceback (most recent call last):
  File "/lib/torch/run.py", line 7, in run
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: the summary
====
train.py FAILED
"""


@pytest.mark.parametrize(
    ("tail", "errors"),
    [
        (f"step 7\n{RAISED}", ["KeyError: 'labels' data.py"]),
        (f"{RAISED}\nretrying\n", []),
        (f"{RAISED}\nretrying\n{RAISED}", ["KeyError: 'labels' data.py"]),
        (CHAINED, ["AcceleratorError: see above train.py", "KeyError: 'labels' data.py"]),
        (LAUNCHED, ["ValueError: bad train.py"]),
        ("Traceback (most recent call last):\n  File", []),
        ("Traceback (most recent call last):\n\nnot an error\n", []),
        ("Traceback (most recent call last):\nKeyboardInterrupt\n", ["KeyboardInterrupt: "]),
        ("no traceback", []),
    ],
)
def test_a_traceback_counts_if_the_log_ends_with_it(tail: str, errors: list[str]) -> None:
    found = [
        f"{error.error_type}: {error.message}" + "".join(f" {frame.file[5:]}" for frame in error.stack[:1])
        for error in read_traceback(tail)
    ]
    assert found == errors


def test_the_last_line_is_the_one_before_the_stacks_of_a_crash() -> None:
    assert last_line(f"step 29\n{STACK}") == last_line(f"step 29\n\n{RAY}") == "step 29"
    assert last_line(STACK) == "Fatal Python error: Aborted"
    assert last_line("a\nb\n\n") == "b"
    assert last_line("") == ""
