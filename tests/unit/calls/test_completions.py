"""Decisions of an OpenAI-style stream over HTTP: what is sent, what came, and how a lost one goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.calls.completions import RESUMPTIONS, CompletionChunk, CompletionProgress, checked
from dljob.calls.resumption import CalleeLoss
from dljob.calls.servers import NextServers, goes_elsewhere, next_servers, pause
from dljob.calls.sse import LineTooLongError, SseDecoder
from dljob.errors import UsageError

BODY = {"prompt": [1, 2], "max_tokens": 6, "min_tokens": 3, "model": "m"}


def event(*ids: int, text: str = "x", finish: str | None = None, **fields: Any) -> bytes:
    choice = {"text": text, "token_ids": list(ids), "finish_reason": finish, **fields.pop("choice", {})}
    return b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n"


def said(content: str | None, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": content}}], **fields}).encode() + b"\n\n"


def begun(body: Any = BODY, **options: Any) -> CompletionProgress:
    own = CompletionProgress(body, **options)
    own.opened("rollout/0", 1, {})
    return own


def loss(own: CompletionProgress, rank: int = 0, *, died: bool = True, opened: bool = True) -> CalleeLoss:
    return CalleeLoss(rank, 1, own.count, died, opened, f"rollout/{rank}: it broke")


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
    whole = line.join(lines)
    decoder, found, at = SseDecoder(), list[bytes](), 0
    for size in cuts:
        found += decoder.feed(whole[at : at + size])
        at += size
    assert found + decoder.feed(whole[at:]) == [b"a", b"b\nc", b"[DONE]"]


def test_lines_of_one_event_may_come_apart() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"data: b\n\n") == [b"a\nb"]
    assert decoder.feed(b"data: c\n\n") == [b"c"]


def test_an_event_without_end_is_bounded() -> None:
    decoder = SseDecoder(limit=100)
    assert decoder.feed(b"data: " + b"x" * 80 + b"\n\n") == [b"x" * 80]
    with pytest.raises(LineTooLongError, match="more than 100 bytes"):
        [decoder.feed(b"y" * 40) for _ in range(3)]
    with pytest.raises(LineTooLongError):
        SseDecoder(limit=100).feed(b"data: " + b"x" * 100 + b"\n\n")
    decoder = SseDecoder(limit=100)
    with pytest.raises(LineTooLongError):
        [decoder.feed(b"data: yyyyyyyy\n") for _ in range(30)]


# -- what is sent


def test_the_first_request_asks_for_ids_and_a_later_one_for_the_rest() -> None:
    own = begun()
    assert own.body() == {**BODY, "stream": True, "return_token_ids": True}
    own.take(event(7) + event(8, 9))
    assert own.lose(loss(own)) == ""
    assert own.body() == {**own.body(), "prompt": [1, 2, 7, 8, 9], "max_tokens": 3, "min_tokens": 0}
    assert begun({**BODY, "return_token_ids": False}).body() == {**BODY, "stream": True}, "a server may refuse the name"
    own = begun({"prompt": [1], "max_tokens": 6})
    own.take(event(7))
    assert "min_tokens" not in own.body()


def test_a_text_goes_on_behind_the_ids_that_its_server_made_of_it() -> None:
    own = begun({"prompt": "once", "max_tokens": 6})
    own.take(event(7, choice={"prompt_token_ids": [5, 5]}))
    assert own.lose(loss(own)) == ""
    assert own.body()["prompt"] == [5, 5, 7]
    own = begun({"prompt": "once", "max_tokens": 6})
    own.take(event(7))
    assert "cannot go on elsewhere" in own.lose(loss(own)), "nobody knows the ids of the prompt"


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
        checked({**BODY, **change})
    assert checked({**BODY, "n": 1, "prompt": (1, 2)})


# -- what came


def test_chunks_have_positions_and_origins() -> None:
    own = begun()
    own.opened("rollout/3", 2, {"x-weights-version": "h"})
    chunks = own.take(event(7, 8) + event(9, weights_version=4) + event(text="", finish="length"))
    assert positions(chunks) == [0, 2, 3]
    assert [chunk.version for chunk in chunks] == ["h", 4, 4]
    assert chunks[2].finish_reason == "length"
    chunks = own.take(
        b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n' + event(5, metadata={"weight_version": "s"})
    )
    assert chunks[0].data == {"choices": [], "usage": {"total_tokens": 3}}
    assert chunks[1].version == "s"
    found = [(part.callee, part.incarnation, part.version, part.first, part.count) for part in own.stream.segments]
    assert found == [("rollout/3", 2, "h", 0, 2), ("rollout/3", 2, 4, 2, 1), ("rollout/3", 2, "s", 3, 1)]
    assert own.stream.received == [7, 8, 9, 5]
    assert own.took


def test_an_answer_ends_by_its_word_or_behind_its_last_chunk() -> None:
    own = begun()
    own.take(event(7) + b"data: [DONE]\n\n" + event(8))
    assert own.closed("cut", died=True) == ("done", "")
    assert own.stream.received == [7]
    own = begun()
    own.take(event(7, finish="stop"))
    assert own.closed("cut", died=True).kind == "done"
    own = begun()
    own.take(event(7) + event(8)[:-4])
    assert own.closed("cut", died=True) == ("died", "cut")
    assert begun().closed("cut", died=False).kind == "lost"
    assert own.stream.received == [7], "an event that is cut off is no token"


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
    own = begun()
    assert positions(own.take(event(7) + part + event(9))) == [0]
    assert own.end
    assert own.end.kind == kind
    assert words.replace("\\", "") in own.end.why
    assert own.stream.received == [7]


def test_an_endless_line_ends_the_answer() -> None:
    own = begun()
    own._decoder = SseDecoder(limit=50)
    assert own.take(b"x" * 51) == []
    assert own.end == ("failed", "an event has more than 50 bytes")


# -- losses


def test_a_server_without_ids_fails_or_begins_anew_as_asked() -> None:
    own = begun()
    own.take(event(text="a") + event(text="b"))
    assert own.lose(loss(own)) == (
        "lost after 2 chunks; its server tells no token ids, so that it cannot go on elsewhere: rollout/0: it broke"
    )
    own = begun(without_ids="restart")
    first = own.take(event(text="a") + event(text="b"))
    assert positions(first) == [0, 1]
    assert own.lose(loss(own)) == ""
    own.opened("rollout/1", 1, {})
    again = own.take(event(text="") + event(text="a") + event(text="b"))
    assert [(chunk.position, chunk.restarted) for chunk in again] == [(0, False), (0, True), (1, False)]
    assert (own.restarts, own.body()["prompt"]) == (1, [1, 2])


@pytest.mark.parametrize("stop", ["\n\nUser:", ["\n", "END"], ("é",)])
def test_a_completion_with_a_stop_that_a_loss_may_cut_in_two_does_not_go_on(stop: Any) -> None:
    """Its server holds text back that may be the beginning of a stop, and the next one does not know of it."""
    own = begun({**BODY, "stop": stop})
    own.take(event(7))
    assert own.lose(loss(own)) == (
        "lost after 1 chunk; a completion with stop texts cannot go on elsewhere: rollout/0: it broke"
    )
    own = begun({**BODY, "stop": stop}, without_ids="restart")
    own.take(event(1, 2, 3, 4, 5, 6))
    assert own.lose(loss(own)) == ""
    assert own.body()["prompt"] == BODY["prompt"]
    assert not own.is_whole, "its last text was held back"


@pytest.mark.parametrize("stop", [None, [], "\n", ["\n", "."], 7])
def test_a_completion_goes_on_where_its_stop_cannot_be_cut(stop: Any) -> None:
    own = begun({**BODY, "stop": stop})
    own.take(event(7))
    assert own.lose(loss(own)) == ""
    assert own.body()["prompt"] == [1, 2, 7]


def test_a_chat_is_sent_again_whole() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    own = begun(body)
    chunks = own.take(b'data: {"choices": [{"delta": null}]}\n\n' + said(None) + said("hel", choice=1) + said("lo"))
    assert ["".join(chunk.text for chunk in chunks), own.count] == ["hello", 2]
    assert "a chat cannot go on elsewhere" in own.lose(loss(own))
    own = begun(body, without_ids="restart")
    own.take(said("hel"))
    assert own.lose(loss(own)) == ""
    assert own.body() == {**body, "stream": True}
    assert not own.is_whole


@pytest.mark.parametrize("part", [{"tool_calls": [{"index": 0}]}, {"reasoning_content": "hm"}, {"refusal": "no"}])
def test_what_a_chat_says_beside_its_text_is_not_sent_again_unseen(part: dict[str, Any]) -> None:
    def told(**delta: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"

    own = begun({"messages": []})
    assert positions(own.take(told(role="assistant", content="", tool_calls=None))) == [0]
    assert own.lose(loss(own, opened=False)) == "", "nothing came yet"
    assert positions(own.take(told(content=None, **part) + told(**part))) == [0, 1]
    assert own.took
    assert own.lose(loss(own)) == "lost after 2 chunks; a chat cannot go on elsewhere: rollout/0: it broke"
    own = begun({"messages": []}, without_ids="restart")
    own.take(told(**part))
    assert own.lose(loss(own)) == ""
    own.opened("rollout/1", 1, {})
    again = own.take(told(role="assistant") + told(**part) + told(**part))
    assert [chunk.restarted for chunk in again] == [False, True, False]
    own = begun({"messages": []}, versions="same")
    assert own.take(told(**part)) == []
    assert own.end
    assert "tells no version" in own.end.why


def test_a_loss_before_the_first_token_is_sent_again_by_any() -> None:
    own = begun({"messages": []})
    assert own.lose(loss(own, opened=False)) == ""
    assert own.restarts == 0


def test_the_last_word_may_be_lost() -> None:
    own = begun()
    own.take(event(1, 2, 3, 4, 5, 6))
    assert own.lose(loss(own)) == ""
    assert own.is_whole
    assert (own.last_chunk().finish_reason, own.last_chunk().position) == ("length", 6)


def test_a_request_that_kills_three_servers_at_one_place_is_given_up() -> None:
    own = begun()
    for rank in range(2):
        own.opened(f"rollout/{rank}", 1, {})
        own.take(event(rank))
        assert own.lose(loss(own, rank)) == ""
    assert own.lose(loss(own, 2)).startswith(
        "given up, as the request seems to kill its servers: rank 0 (incarnation 1) at token 1"
    )


def test_the_number_of_resumptions_has_an_end() -> None:
    own = begun({**BODY, "max_tokens": 100})
    for rank in range(RESUMPTIONS):
        assert own.lose(loss(own, rank, died=False)) == ""
    assert own.lose(loss(own, 99, died=False)).startswith("given up after 20 resumptions")


def test_a_stream_of_one_version_leaves_servers_of_another() -> None:
    own = begun(versions="same")
    assert positions(own.take(event(7, weights_version=1))) == [0]
    assert own.take(event(8, weights_version=2)) == []
    assert own.end == ("other", "it has version 2, and the stream began with 1")
    own.opened("rollout/1", 1, {"x-weights-version": "x"})
    assert own.take(event(8, weights_version=1, system_fingerprint="new")) == []
    assert own.end == ("other", "it has version 1 of new, and the stream began with 1 of ")
    assert not own.took
    own.opened("rollout/2", 1, {})
    assert positions(own.take(event(8, weights_version=1))) == [1]
    own = begun(versions="same")
    own.take(event(7))
    assert own.end
    assert "tells no version" in own.end.why


def test_with_any_version_the_segments_tell_which_made_what() -> None:
    own = begun(version_of=lambda headers, chunk: chunk.get("mine"))
    own.take(event(7, mine=1, system_fingerprint="a"))
    own.opened("rollout/1", 1, {})
    own.take(event(8, mine=2, system_fingerprint="b"))
    assert [(part.version, part.code) for part in own.stream.segments] == [(1, "a"), (2, "b")]


# -- servers


def test_a_server_that_failed_is_asked_again_only_where_no_other_is_ready() -> None:
    ready = [(0, 1), (1, 1)]
    assert next_servers(ready, {}, 0) == NextServers(((0, 1), (1, 1)))
    assert next_servers(ready, {(0, 1): 5.0}, 9) == NextServers(((1, 1),))
    assert next_servers(ready, {(0, 1): 5.0, (1, 1): 7.0}, 6) == NextServers(((0, 1),))
    assert next_servers(ready, {(0, 1): 5.0, (1, 1): 7.0}, 1) == NextServers((), 4.0)
    assert next_servers([(0, 2)], {(0, 1): 5.0}, 1) == NextServers(((0, 2),)), "its next process is another server"
    assert next_servers([], {(0, 1): 5.0}, 1) == NextServers((), None)
    assert [pause(n) for n in (0, 1, 2, 3, 9)] == [0.2, 0.2, 0.4, 0.8, 5.0]


def test_a_server_that_fails_for_hours_has_the_longest_pause() -> None:
    assert [pause(n) for n in (1024, 1025, 10_000_000)] == [5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("method", "change", "allowed", "words"),
    [
        ("POST", {"sent": False, "losses": 0}, True, "nothing was sent"),
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
    usual: dict[str, Any] = {"sent": True, "declared_safe": False, "repeatable": True, "losses": 1}
    found = goes_elsewhere(method, **{**usual, **change}, what="it broke")
    assert found.allowed is allowed
    assert found.why.startswith("it broke; ")
    assert words in found.why
