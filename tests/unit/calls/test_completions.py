"""Decisions of an OpenAI-style stream over HTTP: what is sent, what came, and how a lost one goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.calls.completions import MAX_RESUMPTIONS, CompletionChunk, CompletionProgress, check_body
from dljob.calls.resumption import CalleeLoss, StreamSegment
from dljob.calls.servers import NextServers, decide_retry, next_servers, pause_after
from dljob.calls.sse import LineTooLongError, SseDecoder
from dljob.errors import UsageError

BODY = {"prompt": [1, 2], "max_tokens": 6, "min_tokens": 3, "model": "m"}


def event(*ids: int, text: str = "x", finish: str | None = None, **fields: Any) -> bytes:
    choice = {"text": text, "token_ids": list(ids), "finish_reason": finish, **fields.pop("choice", {})}
    return b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n"


def chat_event(content: str | None, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}], **fields}).encode() + b"\n\n"


def started(body: Any = BODY, **options: Any) -> CompletionProgress:
    progress = CompletionProgress(body, **options)
    progress.begin_answer("rollout/0", 1, {})
    return progress


def loss(progress: CompletionProgress, rank: int = 0, *, died: bool = True, opened: bool = True) -> CalleeLoss:
    return CalleeLoss(rank, 1, progress.position, died, opened, f"rollout/{rank}: it broke")


def positions(chunks: list[CompletionChunk]) -> list[int]:
    return [chunk.position for chunk in chunks]


# -- events


@given(st.lists(st.integers(1, 9)), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int], line: bytes) -> None:
    lines = [
        b": hello",
        b"id: 7",
        b"data: a",
        b"",
        b"data:b",
        b"data: c",
        b"",
        b"",
        b"data: [DONE]",
        b"",
        b"data: cut off",
    ]
    answer = line.join(lines)
    decoder, events, at = SseDecoder(), list[bytes](), 0
    for size in cuts:
        events += decoder.feed(answer[at : at + size])
        at += size
    assert events + decoder.feed(answer[at:]) == [b"a", b"b\nc", b"[DONE]"]


def test_lines_of_one_event_may_come_apart() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"data: b\n\n") == [b"a\nb"]
    assert decoder.feed(b"data: c\n\n") == [b"c"]


def test_an_event_without_end_is_bounded() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    assert decoder.feed(b"data: " + b"x" * 80 + b"\n\n") == [b"x" * 80]
    with pytest.raises(LineTooLongError, match="more than 100 bytes"):
        [decoder.feed(b"y" * 40) for _ in range(3)]
    with pytest.raises(LineTooLongError):
        SseDecoder(max_event_bytes=100).feed(b"data: " + b"x" * 100 + b"\n\n")
    decoder = SseDecoder(max_event_bytes=100)
    with pytest.raises(LineTooLongError):
        [decoder.feed(b"data: yyyyyyyy\n") for _ in range(30)]


# -- what is sent


def test_the_first_request_asks_for_ids_and_a_later_one_for_the_rest() -> None:
    progress = started()
    assert progress.next_body() == {**BODY, "stream": True, "return_token_ids": True}
    progress.read_chunks(event(7) + event(8, 9))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.next_body() == {**progress.next_body(), "prompt": [1, 2, 7, 8, 9], "max_tokens": 3, "min_tokens": 0}
    progress = started({**BODY, "return_token_ids": False})
    assert progress.next_body() == {**BODY, "stream": True}, "a server may refuse the name"
    progress = started({"prompt": [1], "max_tokens": 6})
    progress.read_chunks(event(7))
    assert "min_tokens" not in progress.next_body()


def test_a_text_goes_on_behind_the_ids_that_its_server_made_of_it() -> None:
    progress = started({"prompt": "once", "max_tokens": 6})
    progress.read_chunks(event(7, choice={"prompt_token_ids": [5, 5]}))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.next_body()["prompt"] == [5, 5, 7]
    progress = started({"prompt": "once", "max_tokens": 6})
    progress.read_chunks(event(7))
    assert "cannot go on elsewhere" in progress.note_loss(loss(progress)), "nobody knows the ids of the prompt"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 2}, "n=2: a stream that resumes is one answer"),
        ({"best_of": 3}, "best_of=3"),
        ({"echo": True}, "echo=True"),
        ({"prompt": None}, "prompt=None: wanted a text"),
        ({"prompt": []}, "wanted a text"),
        ({"prompt": [[1], [2]]}, "wanted a text"),
        ({"prompt": ["a", "b"]}, "wanted a text"),
        ({"max_tokens": None}, "max_tokens=None: wanted the number of tokens"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": True}, "max_tokens=True"),
    ],
)
def test_a_request_that_is_no_single_stream_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_body({**BODY, **change})
    check_body({**BODY, "n": 1, "prompt": (1, 2)})


# -- what came


def test_chunks_have_positions_and_origins() -> None:
    progress = started()
    progress.begin_answer("rollout/3", 2, {"x-weights-version": "h"})
    chunks = progress.read_chunks(event(7, 8) + event(9, weights_version=4) + event(text="", finish="length"))
    assert positions(chunks) == [0, 2, 3]
    assert [chunk.version for chunk in chunks] == ["h", 4, 4]
    assert chunks[2].finish_reason == "length"
    chunks = progress.read_chunks(
        b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n' + event(5, metadata={"weight_version": "s"})
    )
    assert chunks[0].data == {"choices": [], "usage": {"total_tokens": 3}}
    assert chunks[1].version == "s"
    assert progress.stream.segments == [
        StreamSegment("rollout/3", 2, "h", 0, 2),
        StreamSegment("rollout/3", 2, 4, 2, 1),
        StreamSegment("rollout/3", 2, "s", 3, 1),
    ]
    assert progress.stream.received == [7, 8, 9, 5]
    assert progress.has_token


def test_an_answer_ends_by_its_word_or_behind_its_last_chunk() -> None:
    progress = started()
    progress.read_chunks(event(7) + b"data: [DONE]\n\n" + event(8))
    assert progress.end_answer("cut", died=True) == ("done", "")
    assert progress.stream.received == [7]
    progress = started()
    progress.read_chunks(event(7, finish="stop"))
    assert progress.end_answer("cut", died=True).kind == "done"
    progress = started()
    progress.read_chunks(event(7) + event(8)[:-4])
    assert progress.end_answer("cut", died=True) == ("died", "cut")
    assert started().end_answer("cut", died=False).kind == "lost"
    assert progress.stream.received == [7], "an event that is cut off is no token"


@pytest.mark.parametrize(
    ("part", "kind", "words"),
    [
        (b"data: {\xff}\n\n", "failed", "is no chunk: 'utf-8'"),
        (b"data: {nonsense\n\n", "failed", "is no chunk"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "failed", "is no chunk"),
        (b"data: [1]\n\n", "failed", "is no chunk of a completion"),
        (b'data: {"choices": 7}\n\n', "failed", "is no chunk of a completion"),
        (b'data: {"choices": [{"text": "a", "token_ids": 5}]}\n\n', "failed", "is no chunk of a completion"),
        (b'data: {"error": {"message": "too long", "code": 400}}\n\n', "failed", r"too long \(code 400\)"),
        (b'data: {"error": {"message": "engine died", "code": 500}}\n\n', "died", "engine died"),
        (b'data: {"error": "oh"}\n\n', "died", "the server says: oh"),
        (event(8, finish="abort"), "lost", "aborted"),
    ],
)
def test_bad_chunks_end_the_answer_behind_the_good_ones(part: bytes, kind: str, words: str) -> None:
    progress = started()
    assert positions(progress.read_chunks(event(7) + part + event(9))) == [0]
    assert progress.end
    assert progress.end.kind == kind
    assert words.replace("\\", "") in progress.end.reason
    assert progress.stream.received == [7]


def test_an_endless_line_ends_the_answer() -> None:
    progress = started()
    progress._decoder = SseDecoder(max_event_bytes=50)
    assert progress.read_chunks(b"x" * 51) == []
    assert progress.end == ("failed", "an event has more than 50 bytes")


# -- losses


def test_a_server_without_ids_fails_or_begins_anew_as_asked() -> None:
    progress = started()
    progress.read_chunks(event(text="a") + event(text="b"))
    assert progress.note_loss(loss(progress)) == (
        "lost after 2 chunks; its server tells no token ids, so that it cannot go on elsewhere: rollout/0: it broke"
    )
    progress = started(without_ids="restart")
    first = progress.read_chunks(event(text="a") + event(text="b"))
    assert positions(first) == [0, 1]
    assert progress.note_loss(loss(progress)) == ""
    progress.begin_answer("rollout/1", 1, {})
    again = progress.read_chunks(event(text="") + event(text="a") + event(text="b"))
    assert [(chunk.position, chunk.restarted) for chunk in again] == [(0, False), (0, True), (1, False)]
    assert (progress.restarts, progress.next_body()["prompt"]) == (1, [1, 2])


@pytest.mark.parametrize("stop", ["\n\nUser:", ["\n", "END"], ("é",)])
def test_a_completion_with_a_stop_that_a_loss_may_cut_in_two_does_not_go_on(stop: Any) -> None:
    """Its server holds text back that may be the beginning of a stop, and the next one does not know of it."""
    progress = started({**BODY, "stop": stop})
    progress.read_chunks(event(7))
    assert progress.note_loss(loss(progress)) == (
        "lost after 1 chunk; a completion with stop texts cannot go on elsewhere: rollout/0: it broke"
    )
    progress = started({**BODY, "stop": stop}, without_ids="restart")
    progress.read_chunks(event(1, 2, 3, 4, 5, 6))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.next_body()["prompt"] == BODY["prompt"]
    assert not progress.has_all_tokens, "its last text was held back"


@pytest.mark.parametrize("stop", [None, [], "\n", ["\n", "."], 7])
def test_a_completion_goes_on_where_its_stop_cannot_be_cut(stop: Any) -> None:
    progress = started({**BODY, "stop": stop})
    progress.read_chunks(event(7))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.next_body()["prompt"] == [1, 2, 7]


def test_a_chat_is_sent_again_whole() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    progress = started(body)
    chunks = progress.read_chunks(
        b'data: {"choices": [{"delta": null}]}\n\n' + chat_event(None) + chat_event("hel", choice=1) + chat_event("lo")
    )
    assert ["".join(chunk.text for chunk in chunks), progress.position] == ["hello", 2]
    assert "a chat cannot go on elsewhere" in progress.note_loss(loss(progress))
    progress = started(body, without_ids="restart")
    progress.read_chunks(chat_event("hel"))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.next_body() == {**body, "stream": True}
    assert not progress.has_all_tokens


@pytest.mark.parametrize("part", [{"tool_calls": [{"index": 0}]}, {"reasoning_content": "hm"}, {"refusal": "no"}])
def test_what_a_chat_says_beside_its_text_is_not_sent_again_unseen(part: dict[str, Any]) -> None:
    def chat_chunk(**delta: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"

    progress = started({"messages": []})
    assert positions(progress.read_chunks(chat_chunk(role="assistant", content="", tool_calls=None))) == [0]
    assert progress.note_loss(loss(progress, opened=False)) == "", "nothing came yet"
    assert positions(progress.read_chunks(chat_chunk(content=None, **part) + chat_chunk(**part))) == [0, 1]
    assert progress.has_token
    given_up = progress.note_loss(loss(progress))
    assert given_up == "lost after 2 chunks; a chat cannot go on elsewhere: rollout/0: it broke"
    progress = started({"messages": []}, without_ids="restart")
    progress.read_chunks(chat_chunk(**part))
    assert progress.note_loss(loss(progress)) == ""
    progress.begin_answer("rollout/1", 1, {})
    again = progress.read_chunks(chat_chunk(role="assistant") + chat_chunk(**part) + chat_chunk(**part))
    assert [chunk.restarted for chunk in again] == [False, True, False]
    progress = started({"messages": []}, versions="same")
    assert progress.read_chunks(chat_chunk(**part)) == []
    assert progress.end
    assert "tells no version" in progress.end.reason


def test_a_loss_before_the_first_token_is_sent_again_by_any() -> None:
    progress = started({"messages": []})
    assert progress.note_loss(loss(progress, opened=False)) == ""
    assert progress.restarts == 0


def test_the_last_word_may_be_lost() -> None:
    progress = started()
    progress.read_chunks(event(1, 2, 3, 4, 5, 6))
    assert progress.note_loss(loss(progress)) == ""
    assert progress.has_all_tokens
    assert (progress.last_chunk().finish_reason, progress.last_chunk().position) == ("length", 6)


def test_a_request_that_kills_three_servers_at_one_place_is_given_up() -> None:
    progress = started()
    for rank in range(2):
        progress.begin_answer(f"rollout/{rank}", 1, {})
        progress.read_chunks(event(rank))
        assert progress.note_loss(loss(progress, rank)) == ""
    assert progress.note_loss(loss(progress, 2)).startswith(
        "given up, as the request seems to kill its servers: rank 0 (incarnation 1) at token 1"
    )


def test_the_number_of_resumptions_has_an_end() -> None:
    progress = started({**BODY, "max_tokens": 100})
    for rank in range(MAX_RESUMPTIONS):
        assert progress.note_loss(loss(progress, rank, died=False)) == ""
    assert progress.note_loss(loss(progress, 99, died=False)).startswith("given up after 20 resumptions")


def test_a_stream_of_one_version_leaves_servers_of_another() -> None:
    progress = started(versions="same")
    assert positions(progress.read_chunks(event(7, weights_version=1))) == [0]
    assert progress.read_chunks(event(8, weights_version=2)) == []
    assert progress.end == ("other version", "it has version 2, and the stream began with 1")
    progress.begin_answer("rollout/1", 1, {"x-weights-version": "x"})
    assert progress.read_chunks(event(8, weights_version=1, system_fingerprint="new")) == []
    assert progress.end == ("other version", "it has version 1 of new, and the stream began with 1 of ")
    assert not progress.has_token
    progress.begin_answer("rollout/2", 1, {})
    assert positions(progress.read_chunks(event(8, weights_version=1))) == [1]
    progress = started(versions="same")
    progress.read_chunks(event(7))
    assert progress.end
    assert "tells no version" in progress.end.reason


def test_with_any_version_the_segments_tell_which_made_what() -> None:
    progress = started(version_of=lambda headers, chunk: chunk.get("mine"))
    progress.read_chunks(event(7, mine=1, system_fingerprint="a"))
    progress.begin_answer("rollout/1", 1, {})
    progress.read_chunks(event(8, mine=2, system_fingerprint="b"))
    assert [(part.version, part.code) for part in progress.stream.segments] == [(1, "a"), (2, "b")]


# -- servers


def test_a_server_that_failed_is_asked_again_only_where_no_other_is_ready() -> None:
    ready = [(0, 1), (1, 1)]
    assert next_servers(ready, {}, 0) == NextServers(((0, 1), (1, 1)))
    assert next_servers(ready, {(0, 1): 5.0}, 9) == NextServers(((1, 1),))
    assert next_servers(ready, {(0, 1): 5.0, (1, 1): 7.0}, 6) == NextServers(((0, 1),))
    assert next_servers(ready, {(0, 1): 5.0, (1, 1): 7.0}, 1) == NextServers((), 4.0)
    assert next_servers([(0, 2)], {(0, 1): 5.0}, 1) == NextServers(((0, 2),)), "its next process is another server"
    assert next_servers([], {(0, 1): 5.0}, 1) == NextServers((), None)
    assert [pause_after(n) for n in (0, 1, 2, 3, 9)] == [0.2, 0.2, 0.4, 0.8, 5.0]


def test_a_server_that_fails_for_hours_has_the_longest_pause() -> None:
    assert [pause_after(n) for n in (1024, 1025, 10_000_000)] == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("method", "change", "allowed", "words"),
    [
        ("POST", {"is_sent": False, "losses": 0}, True, "nothing was sent"),
        ("POST", {}, False, "is not declared safe"),
        ("POST", {"declared_safe": True}, True, "declared safe"),
        ("PUT", {"losses": 2}, True, "may run twice"),
        ("GET", {"losses": 3}, False, "may be the cause"),
        ("PUT", {"repeatable": False}, False, "cannot be sent again"),
    ],
)
def test_only_what_is_safe_goes_to_another_server(
    method: str, change: dict[str, Any], allowed: bool, words: str
) -> None:
    usual: dict[str, Any] = {"is_sent": True, "declared_safe": False, "repeatable": True, "losses": 1}
    decision = decide_retry(method, **{**usual, **change}, failure="it broke")
    assert decision.allowed is allowed
    assert decision.reason.startswith("it broke; ")
    assert words in decision.reason
