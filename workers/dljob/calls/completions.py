"""Decisions of an OpenAI-style stream over HTTP: what is sent, what came, and how it goes on at another server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from dljob.calls.resumption import CalleeLoss, StreamProgress
from dljob.calls.sse import LineTooLongError, SseDecoder
from dljob.errors import UsageError
from dljob.telemetry.wording import counted

RESUMPTIONS = 20
"""Most resumptions of a stream."""
WINDOW = 16
"""Tokens that may be under way: deaths no further apart than these are deaths at the same place."""
DONE = b"[DONE]"
_parse = json.JSONDecoder().decode
ABORTED = "abort"
"""The finish_reason by which vLLM and SGLang say that a request was ended from outside, as by their stop."""

Versions = Literal["same", "any"]
WithoutIds = Literal["restart", "fail"]
VersionOf: TypeAlias = Callable[[Mapping[str, str], Mapping[str, Any]], Any]
"""(headers of the answer, chunk) -> the version of the weights that made the chunk, or None."""


class CompletionChunk(NamedTuple):
    """A chunk of a stream of completions, with its origin."""

    text: str
    """Text of a completion, or of a chat's answer."""
    token_ids: Sequence[int]
    """Ids of its tokens; empty where the server tells none."""
    position: int
    """Number of tokens before it; of chunks with a part of the answer, where the server tells no ids."""
    version: Any
    """Version of the weights that made it; None where the server tells none."""
    server: str
    """The rank that made it, as in "rollout/1"."""
    finish_reason: str | None
    restarted: bool
    """The stream began anew with this chunk: those before it are void."""
    data: Mapping[str, Any]
    """The whole chunk as it came."""


class AnswerEnd(NamedTuple):
    """What a server's answer ended in, and in whose words."""

    kind: Literal["done", "lost", "died", "other", "failed"]
    """lost: its server may live. other: it has another version. failed: it would fail elsewhere, too."""
    why: str = ""


def told_version(headers: Mapping[str, str], chunk: Mapping[str, Any]) -> Any:
    """Return the version of a chunk's weights: its own field, that of SGLang's metadata, or the answer's header."""
    version = chunk.get("weights_version")
    if version is None and (metadata := chunk.get("metadata")):
        version = metadata.get("weight_version")
    return headers.get("x-weights-version") if version is None else version


def checked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the body of a request, of which one stream of tokens can be made.

    Raises:
        UsageError: It asks for several answers, or has no number of tokens.
    """
    name = next((each for each in ("n", "best_of") if body.get(each) not in (None, 1)), None)
    name = name or next((each for each in ("echo", "use_beam_search") if body.get(each)), None)
    if name is not None:
        raise UsageError(
            f"{name}={body[name]!r}: a stream that resumes is one answer", hint="send one request for each"
        )
    if "messages" in body:
        return dict(body)
    prompt = body.get("prompt")
    ids = isinstance(prompt, list | tuple) and prompt and all(type(each) is int for each in prompt)
    if not isinstance(prompt, str) and not ids:
        raise UsageError(f"prompt={prompt!r:.60}: wanted a text, or the ids of its tokens; or messages, for a chat")
    tokens = body.get("max_tokens")
    if type(tokens) is not int or tokens < 1:
        # Servers differ in their default: nobody would know how many tokens are left after a loss.
        raise UsageError(f"max_tokens={tokens!r}: wanted the number of tokens, from 1 on")
    return dict(body)


class CompletionProgress:
    """What came of one request, and what is asked of the next server.

    A completion goes on behind its token ids. A chat, and a completion of a server that tells no ids, cannot: text that
    is tokenized again may be other tokens. Nor can a completion with stop texts.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        *,
        versions: Versions = "any",
        without_ids: WithoutIds = "fail",
        version_of: VersionOf = told_version,
    ) -> None:
        self._asked = checked(body)
        self.chat = "messages" in body
        self._versions = versions
        self._without_ids = without_ids
        self._version_of = version_of
        self._has_stop = _may_be_cut(body.get("stop"))
        self._stream: StreamProgress[int] = StreamProgress()
        prompt = body.get("prompt")
        self._prompt: list[int] | None = None if self.chat or isinstance(prompt, str) else list(prompt or ())
        self.count = 0
        """Number of tokens that came; of chunks with a part of the answer, where there are no ids."""
        self._has_ids: bool | None = None
        """None: no token came yet."""
        self.restarts = 0
        self._begun_anew = False
        self._wanted: tuple[Any, str] | None = None
        """Version and code with which the stream began."""
        self._is_finished = False
        self._forget_answer()

    def _forget_answer(self) -> None:
        self._decoder = SseDecoder()
        self._headers: Mapping[str, str] = {}
        self._callee, self._incarnation = "", 0
        self._made_by: tuple[Any, str] | None = None
        """Version and code of this answer's last chunk; None before its first."""
        self._fresh: list[int] = []
        """Ids that came with them and are not noted yet: to note them one by one would cost as much as to read them."""
        self.end: AnswerEnd | None = None
        """What the present answer ended in; None while it goes on."""
        self.took = False
        """Whether the present answer gave a token."""

    @property
    def stream(self) -> StreamProgress[int]:
        """Ids, segments and losses so far."""
        self._note_fresh()
        return self._stream

    # -- what is asked

    @property
    def can_resume(self) -> bool:
        """Whether another server can go on behind what came."""
        return not self.count or (bool(self._has_ids) and self._prompt is not None and not self._has_stop)

    @property
    def is_open(self) -> bool:
        """Whether the present server has begun its answer."""
        return bool(self._headers)

    @property
    def is_whole(self) -> bool:
        """Whether all tokens came, and only the word of the end was lost."""
        return bool(self._has_ids) and self.can_resume and self.count >= self._asked.get("max_tokens", 0)

    def body(self) -> dict[str, Any]:
        """Return the body of the next request."""
        body = {**self._asked, "stream": True}
        if not self.chat:
            body.setdefault("return_token_ids", True)
        if body.get("return_token_ids") is False:  # for a server that refuses the very name
            del body["return_token_ids"]
        if received := self.stream.received:
            body["prompt"] = [*(self._prompt or ()), *received]
            body["max_tokens"] -= len(received)
            if body.get("min_tokens"):
                body["min_tokens"] = max(0, body["min_tokens"] - len(received))
        return body

    def opened(self, callee: str, incarnation: int, headers: Mapping[str, str]) -> None:
        """Note that a server answers; its headers have names in lower case."""
        self._note_fresh()
        self._forget_answer()
        self._callee, self._incarnation, self._headers = callee, incarnation, headers

    # -- what came

    def take(self, part: bytes) -> list[CompletionChunk]:
        """Return the chunks in the next bytes of an answer; `end` says whether it goes on."""
        try:
            events = self._decoder.feed(part)
        except LineTooLongError as error:
            self.end = AnswerEnd("failed", str(error))
            return []
        chunks: list[CompletionChunk] = []
        for event in events:
            if event == DONE:
                self.end = AnswerEnd("done")
                break
            try:
                chunk = self._chunk(_parse(event.decode()))
            except (ValueError, RecursionError) as error:  # no UTF-8, no JSON
                self.end = AnswerEnd("failed", f"{event[:80]!r} is no chunk: {error}")
                break
            except (AttributeError, TypeError, LookupError):
                self.end = AnswerEnd("failed", f"{event[:80]!r} is no chunk of a completion")
                break
            if chunk is None:
                break
            chunks.append(chunk)
        return chunks

    def _chunk(self, data: Any) -> CompletionChunk | None:
        """Return a chunk; None where it ends the answer."""
        choices = data.get("choices")
        choice = choices[0] if choices else {}
        if not choices and "error" in data:
            self.end = _error(data["error"])
            return None
        finish: str | None = choice.get("finish_reason")
        if finish == ABORTED:
            self.end = AnswerEnd("lost", "the server aborted the request")
            return None
        ids: list[int] = choice.get("token_ids") or []
        delta = choice.get("delta") or {}
        text: str = (delta.get("content") if self.chat else choice.get("text")) or ""
        if not ids and not text and not _says_more(delta):
            self._is_finished = self._is_finished or finish is not None
            version = self._made_by and self._made_by[0]
            return CompletionChunk(text, ids, self.count, version, self._callee, finish, False, data)
        # Almost all chunks are of the version of the one before; the rest is done for the others alone.
        version = self._version_of(self._headers, data)
        if (self._made_by is None or version != self._made_by[0]) and not self._takes(version, data, choice, ids):
            return None
        if finish is not None:
            self._is_finished = True
        position, anew = self.count, self._begun_anew
        self._begun_anew = False
        if self._has_ids:
            self._fresh += ids
            self.count += len(ids)
        else:
            self.count += 1
        return CompletionChunk(text, ids, position, version, self._callee, finish, anew, data)

    def _takes(self, version: Any, data: Mapping[str, Any], choice: Mapping[str, Any], ids: Sequence[int]) -> bool:
        """Note the origin of a chunk with tokens; returns whether it belongs to the stream."""
        made_by = self._made_by
        # The code is that of the process: it is read once.
        code = made_by[1] if made_by else data.get("system_fingerprint") or ""
        if not self._suits(version, code):
            return False
        self._note_fresh()
        if made_by is None:
            self._stream.begin(self._callee, self._incarnation, code)
        self._made_by = version, code
        if self._has_ids is None:
            self._has_ids = bool(ids)
            if self._prompt is None and not self.chat:
                self._prompt = choice.get("prompt_token_ids")
        self.took = True
        return True

    def _suits(self, version: Any, code: str) -> bool:
        if self._versions == "any":
            return True
        if version is None:
            self.end = AnswerEnd("failed", "versions='same', and the server tells no version of its weights")
            return False
        if self._wanted is None:
            self._wanted = version, code
        if self._wanted != (version, code):
            wanted = f"{self._wanted[0]!r}" + (f" of {self._wanted[1]}" if self._wanted[1] != code else "")
            there = f"{version!r}" + (f" of {code or 'other code'}" if self._wanted[1] != code else "")
            self.end = AnswerEnd("other", f"it has version {there}, and the stream began with {wanted}")
            return False
        return True

    def _note_fresh(self) -> None:
        if self._fresh and self._made_by is not None:
            fresh, self._fresh = self._fresh, []
            self._stream.extend(fresh, self._made_by[0])

    def closed(self, why: str, *, died: bool) -> AnswerEnd:
        """Return what an answer ended in whose connection ended."""
        if self.end is None:
            # Some servers close behind the last chunk, without a word of the end.
            self.end = AnswerEnd("done") if self._is_finished else AnswerEnd("died" if died else "lost", why)
        return self.end

    # -- what follows

    def lose(self, loss: CalleeLoss) -> str:
        """Note the loss of a server; returns why the stream is given up, empty where it goes on."""
        losses = self.stream.losses
        losses.append(loss)
        if deaths := self._stream.poisoned(WINDOW):
            return f"given up, as the request seems to kill its servers: {_listed(deaths)}"
        if len(losses) > RESUMPTIONS:
            return f"given up after {counted(RESUMPTIONS, 'resumption')}: {_listed(losses)}"
        if not self.can_resume:
            if self._without_ids == "fail":
                return f"lost after {counted(self.count, 'chunk')}; {self._what} cannot go on elsewhere: {loss.why}"
            self.restarts += 1
            self._begun_anew = True
            self._stream.received.clear()
            self._stream.segments.clear()
            self.count, self._has_ids, self._wanted = 0, None, None
        return ""

    @property
    def _what(self) -> str:
        if self.chat:
            return "a chat"
        return "a completion with stop texts" if self._has_stop else "its server tells no token ids, so that it"

    def last_chunk(self) -> CompletionChunk:
        """Return the end of a stream whose last server was lost before it said so."""
        return CompletionChunk("", [], self.count, None, self._callee, "length", False, {})


def _may_be_cut(stop: Any) -> bool:
    """Whether a loss may cut a stop text in two.

    A server sends the ids of tokens whose text may begin a stop, and holds that text back: the next one, to which the
    ids are prompt, neither sends it nor finds the stop. One ASCII character is in one token, and nothing is held back.
    """
    texts = stop if isinstance(stop, list | tuple) else [stop]
    return any(isinstance(text, str) and (len(text) > 1 or not text.isascii()) for text in texts)


def _says_more(delta: Mapping[str, Any]) -> bool:
    """Whether a chat's chunk without text has a part of the answer: a call of a tool, or a thought."""
    return any(value for name, value in delta.items() if name != "role")


def _error(error: Any) -> AnswerEnd:
    """Return the end of an answer that says an error in its midst."""
    code = error.get("code") if isinstance(error, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    said = f"the server says: {str(message)[:500]}" + (f" (code {code})" if code is not None else "")
    return AnswerEnd("failed" if isinstance(code, int) and 400 <= code < 500 else "died", said)


def _listed(losses: Sequence[CalleeLoss]) -> str:
    who = [f"rank {each.rank} (incarnation {each.incarnation}) at token {each.position}" for each in losses]
    return f"{', '.join(who)}; the last: {losses[-1].why}"
