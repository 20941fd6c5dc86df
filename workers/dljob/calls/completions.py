"""Decisions of an OpenAI-style stream over HTTP: its requests, the chunks of its answers, and how it resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from dljob.calls.resumption import CalleeLoss, StreamProgress
from dljob.calls.sse import LineTooLongError, SseDecoder
from dljob.errors import UsageError
from dljob.telemetry.wording import counted

MAX_RESUMPTIONS = 20
"""Most resumptions of a stream."""
TOKENS_UNDER_WAY = 16
"""Most tokens that a server has made and the caller has not received: deaths no further apart are at the same place."""
DONE_EVENT = b"[DONE]"
_parse_json = json.JSONDecoder().decode
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
    """Ids of its tokens; empty where the server sends none."""
    position: int
    """Number of tokens before it; of chunks with a part of the answer, where the server sends no ids."""
    version: Any
    """Version of the weights that made it; None where the server reports none."""
    server: str
    """The rank that made it, as in "rollout/1"."""
    finish_reason: str | None
    restarted: bool
    """The stream began anew with this chunk: discard those before it."""
    data: Mapping[str, Any]
    """The JSON object of the chunk."""


class AnswerEnd(NamedTuple):
    """How a server's answer ended, and why."""

    kind: Literal["done", "lost", "died", "other version", "failed"]
    """lost: the server may still live. failed: the request would fail at another server, too."""
    reason: str = ""


class ChunkOrigin(NamedTuple):
    """What made a chunk."""

    version: Any
    """Version of the weights; None where the server reports none."""
    code: str
    """The server's `system_fingerprint`."""


def reported_version(headers: Mapping[str, str], chunk: Mapping[str, Any]) -> Any:
    """Return the version of a chunk's weights: its own field, that of SGLang's metadata, or the answer's header."""
    version = chunk.get("weights_version")
    if version is None and (metadata := chunk.get("metadata")):
        version = metadata.get("weight_version")
    return headers.get("x-weights-version") if version is None else version


def check_body(body: Mapping[str, Any]) -> None:
    """Check that the body of a request asks for one stream of tokens.

    Raises:
        UsageError: It asks for several answers, or has no number of tokens.
    """
    unsupported_options = [name for name in ("n", "best_of") if body.get(name) not in (None, 1)]
    unsupported_options += [name for name in ("echo", "use_beam_search") if body.get(name)]
    if unsupported_options:
        name = unsupported_options[0]
        raise UsageError(
            f"{name}={body[name]!r}: a stream that resumes is one answer", hint="send one request for each"
        )
    if "messages" in body:
        return
    prompt = body.get("prompt")
    has_token_ids = isinstance(prompt, list | tuple) and prompt and all(type(token) is int for token in prompt)
    if not isinstance(prompt, str) and not has_token_ids:
        raise UsageError(f"prompt={prompt!r:.60}: wanted a text, or the ids of its tokens; or messages, for a chat")
    max_tokens = body.get("max_tokens")
    if type(max_tokens) is not int or max_tokens < 1:
        # Servers differ in their default: after a loss it would be unknown how many tokens remain.
        raise UsageError(f"max_tokens={max_tokens!r}: wanted the number of tokens, from 1 on")


class CompletionProgress:
    """The tokens of one request so far, and the body of the next request that continues them.

    A completion resumes behind its token ids. A chat, and a completion of a server that sends no ids, cannot: text that
    is tokenized again may be other tokens. Nor can a completion with stop texts.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        *,
        versions: Versions = "any",
        without_ids: WithoutIds = "fail",
        version_of: VersionOf = reported_version,
    ) -> None:
        check_body(body)
        self._user_body = dict(body)
        self.is_chat = "messages" in body
        self._versions = versions
        self._without_ids = without_ids
        self._version_of = version_of
        self._loss_may_split_stop = _loss_may_split_stop(body.get("stop"))
        self._stream: StreamProgress[int] = StreamProgress()
        prompt = body.get("prompt")
        self._prompt_ids: list[int] | None = None if self.is_chat or isinstance(prompt, str) else list(prompt or ())
        self.position = 0
        """Number of tokens that came; of chunks with a part of the answer, where there are no ids."""
        self._has_ids: bool | None = None
        """Whether the server sends token ids; None before the first token."""
        self.restarts = 0
        self._is_restarting = False
        """Whether the next chunk with a token is the first after a restart."""
        self._first_origin: ChunkOrigin | None = None
        """Origin of the stream's first chunk, which `versions="same"` requires of all."""
        self._has_finish_reason = False
        self._reset_answer()

    def _reset_answer(self) -> None:
        self._decoder = SseDecoder()
        self._headers: Mapping[str, str] = {}
        self._callee, self._incarnation = "", 0
        self._origin: ChunkOrigin | None = None
        """Origin of this answer's last chunk; None before its first."""
        self._unnoted_ids: list[int] = []
        """Ids of that origin that are not in `stream` yet: to note each by itself would cost as much as to read it."""
        self.end: AnswerEnd | None = None
        """How the present answer ended; None while it goes on."""
        self.has_token = False
        """Whether the present answer gave a token."""

    @property
    def stream(self) -> StreamProgress[int]:
        """Ids, segments and losses so far."""
        self._note_ids()
        return self._stream

    # -- the next request

    @property
    def can_resume(self) -> bool:
        """Whether another server can continue the tokens so far."""
        has_all_ids = bool(self._has_ids) and self._prompt_ids is not None
        return not self.position or (has_all_ids and not self._loss_may_split_stop)

    @property
    def is_open(self) -> bool:
        """Whether the present server has begun its answer."""
        return bool(self._headers)

    @property
    def has_all_tokens(self) -> bool:
        """Whether all tokens came, so that a loss cost only the end of the answer."""
        return bool(self._has_ids) and self.can_resume and self.position >= self._user_body.get("max_tokens", 0)

    def next_body(self) -> dict[str, Any]:
        """Return the body of the next request."""
        body = {**self._user_body, "stream": True}
        if not self.is_chat:
            body.setdefault("return_token_ids", True)
        if body.get("return_token_ids") is False:  # for a server that does not know this field
            del body["return_token_ids"]
        if received_ids := self.stream.received:
            body["prompt"] = [*(self._prompt_ids or ()), *received_ids]
            body["max_tokens"] -= len(received_ids)
            if body.get("min_tokens"):
                body["min_tokens"] = max(0, body["min_tokens"] - len(received_ids))
        return body

    def begin_answer(self, callee: str, incarnation: int, headers: Mapping[str, str]) -> None:
        """Note that a server answers; its headers have names in lower case."""
        self._note_ids()
        self._reset_answer()
        self._callee, self._incarnation, self._headers = callee, incarnation, headers

    # -- the answer

    def read_chunks(self, answer_bytes: bytes) -> list[CompletionChunk]:
        """Return the chunks in the next bytes of an answer; `end` tells whether it goes on."""
        try:
            events = self._decoder.feed(answer_bytes)
        except LineTooLongError as error:
            self.end = AnswerEnd("failed", str(error))
            return []
        chunks: list[CompletionChunk] = []
        for event in events:
            if event == DONE_EVENT:
                self.end = AnswerEnd("done")
                break
            try:
                chunk = self._read_chunk(_parse_json(event.decode()))
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

    def _read_chunk(self, data: Any) -> CompletionChunk | None:
        """Return a chunk; None where it ends the answer."""
        choices = data.get("choices")
        choice = choices[0] if choices else {}
        if not choices and "error" in data:
            self.end = _end_of_error(data["error"])
            return None
        finish_reason: str | None = choice.get("finish_reason")
        if finish_reason == ABORTED:
            self.end = AnswerEnd("lost", "the server aborted the request")
            return None
        ids: list[int] = choice.get("token_ids") or []
        delta = choice.get("delta") or {}
        text: str = (delta.get("content") if self.is_chat else choice.get("text")) or ""
        # A chat's chunk without text may be a part of the answer: a call of a tool, or a thought.
        if not ids and not text and not any(value for name, value in delta.items() if name != "role"):
            self._has_finish_reason = self._has_finish_reason or finish_reason is not None
            version = self._origin and self._origin.version
            return CompletionChunk(
                text, ids, self.position, version, self._callee, finish_reason, restarted=False, data=data
            )
        # Almost all chunks have the version of the one before: only the others need the rest.
        version = self._version_of(self._headers, data)
        is_new_origin = self._origin is None or version != self._origin.version
        if is_new_origin and not self._accept_origin(version, data, choice, has_ids=bool(ids)):
            return None
        if finish_reason is not None:
            self._has_finish_reason = True
        position, is_restarted = self.position, self._is_restarting
        self._is_restarting = False
        if self._has_ids:
            self._unnoted_ids += ids
            self.position += len(ids)
        else:
            self.position += 1
        return CompletionChunk(text, ids, position, version, self._callee, finish_reason, is_restarted, data)

    def _accept_origin(
        self, version: Any, data: Mapping[str, Any], choice: Mapping[str, Any], *, has_ids: bool
    ) -> bool:
        """Note the origin of a chunk with tokens; False, with `end` set, where it does not belong to the stream."""
        # The code does not change within a process, which makes the whole answer: it is read once.
        origin = ChunkOrigin(version, self._origin.code if self._origin else data.get("system_fingerprint") or "")
        if self._versions == "same":
            if version is None:
                self.end = AnswerEnd("failed", "versions='same', and the server tells no version of its weights")
                return False
            self._first_origin = self._first_origin or origin
            if origin != self._first_origin:
                self.end = AnswerEnd("other version", _version_difference(origin, self._first_origin))
                return False
        self._note_ids()
        if self._origin is None:
            self._stream.begin_segment(self._callee, self._incarnation, origin.code)
        self._origin = origin
        if self._has_ids is None:
            self._has_ids = has_ids
            if self._prompt_ids is None and not self.is_chat:
                self._prompt_ids = choice.get("prompt_token_ids")
        self.has_token = True
        return True

    def _note_ids(self) -> None:
        if self._unnoted_ids and self._origin is not None:
            ids, self._unnoted_ids = self._unnoted_ids, []
            self._stream.add_unnumbered_items(ids, self._origin.version)

    def end_answer(self, reason: str, *, died: bool) -> AnswerEnd:
        """Return how an answer ended whose connection ended for this reason."""
        if self.end is None:
            # Some servers close the connection after the last chunk, without a [DONE].
            self.end = AnswerEnd("done") if self._has_finish_reason else AnswerEnd("died" if died else "lost", reason)
        return self.end

    # -- after a loss

    def note_loss(self, loss: CalleeLoss) -> str:
        """Note the loss of a server; returns why the stream is given up, empty where it goes on."""
        losses = self.stream.losses
        losses.append(loss)
        if deaths := self._stream.poison_deaths(TOKENS_UNDER_WAY):
            return f"given up, as the request seems to kill its servers: {_describe_losses(deaths)}"
        if len(losses) > MAX_RESUMPTIONS:
            return f"given up after {counted(MAX_RESUMPTIONS, 'resumption')}: {_describe_losses(losses)}"
        if self.can_resume:
            return ""
        if self._without_ids == "fail":
            subject = "a chat" if self.is_chat else "its server tells no token ids, so that it"
            if self._loss_may_split_stop and not self.is_chat:
                subject = "a completion with stop texts"
            return f"lost after {counted(self.position, 'chunk')}; {subject} cannot go on elsewhere: {loss.reason}"
        self.restarts += 1
        self._is_restarting = True
        self._stream.received.clear()
        self._stream.segments.clear()
        self.position, self._has_ids, self._first_origin = 0, None, None
        return ""

    def last_chunk(self) -> CompletionChunk:
        """Return the end of a stream whose last server was lost after the last token, before it sent the end."""
        return CompletionChunk("", [], self.position, None, self._callee, "length", restarted=False, data={})


def _loss_may_split_stop(stop: Any) -> bool:
    """Whether a loss may fall within a stop text.

    A server sends the ids of tokens whose text may begin a stop, and holds that text back: the next server, to which
    these ids are prompt, neither sends the text nor finds the stop. One ASCII character is in one token, and no text is
    held back.
    """
    texts = stop if isinstance(stop, list | tuple) else [stop]
    return any(isinstance(text, str) and (len(text) > 1 or not text.isascii()) for text in texts)


def _end_of_error(error: Any) -> AnswerEnd:
    """Return the end of an answer whose event has an error in place of a chunk."""
    code = error.get("code") if isinstance(error, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    reason = f"the server says: {str(message)[:500]}" + (f" (code {code})" if code is not None else "")
    return AnswerEnd("failed" if isinstance(code, int) and 400 <= code < 500 else "died", reason)


def _version_difference(origin: ChunkOrigin, first_origin: ChunkOrigin) -> str:
    present, first = f"{origin.version!r}", f"{first_origin.version!r}"
    if origin.code != first_origin.code:
        present, first = f"{present} of {origin.code or 'other code'}", f"{first} of {first_origin.code}"
    return f"it has version {present}, and the stream began with {first}"


def _describe_losses(losses: Sequence[CalleeLoss]) -> str:
    servers = [f"rank {loss.rank} (incarnation {loss.incarnation}) at token {loss.position}" for loss in losses]
    return f"{', '.join(servers)}; the last: {losses[-1].reason}"
