"""Answers of a live page: the page itself, what changed since the version that a reader has, and earlier events."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from dljob.errors import DLJobError
from dljob.report import page
from dljob.report.live.feed import JobFeed
from dljob.report.live.server import PageAnswer, PageRequest, as_json, trouble
from dljob.report.live.sources import OlderEvents, SourceSilentError
from dljob.report.page import to_json


class PageApp:
    """Handler of the server for one job."""

    def __init__(self, feed: JobFeed) -> None:
        self._feed = feed
        self._policy = f"{page.policy(live=True)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

    async def __call__(self, request: PageRequest) -> PageAnswer:
        """Answer a reader."""
        if request.path == "/":
            text = page.html(self._feed.document.all_data())
            headers = {"Content-Security-Policy": self._policy}
            return PageAnswer(200, text.encode(errors="replace"), "text/html; charset=utf-8", headers)
        if request.path == "/data":
            try:
                answer = await self._feed.answer(request.query.get("after", ""))
            except SourceSilentError as error:
                return trouble(str(error), self._feed.away_since)
            return PageAnswer(HTTPStatus.NO_CONTENT) if answer is None else as_json(answer)
        if request.path == "/older":
            return await self._older(request.query)
        return PageAnswer(HTTPStatus.NOT_FOUND)

    async def _older(self, query: Mapping[str, str]) -> PageAnswer:
        try:
            asked = OlderEvents(
                int(query["before"]),
                tuple(query.get("words", "").split()),
                query.get("reason", ""),
                float(query.get("from", "-inf")),
                float(query.get("to", "inf")),
            )
        except (KeyError, ValueError):
            return PageAnswer(HTTPStatus.BAD_REQUEST)
        try:
            earlier = await self._feed.older(asked)
        except (DLJobError, OSError) as error:
            return trouble(str(error))
        return as_json(to_json(earlier._asdict()).encode(errors="replace"))
