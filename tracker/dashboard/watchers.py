"""One who watches a page: what is to be told next over the socket, or why it ends."""

from __future__ import annotations

import asyncio

from tracker.dashboard.visitors import Visitor

# Close codes; live.js knows them.
BAD_REQUEST, BAD_LOGIN, FORBIDDEN, NOT_FOUND, TRY_LATER = 4400, 4401, 4403, 4404, 4503
NOTHING_NEW = "{}"


class Refused(Exception):
    """A socket can't stay open, in words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


class Watcher:
    """One socket's end: what it is to be told next, or why it ends."""

    def __init__(self, visitor: Visitor, address: str) -> None:
        self.visitor, self.address = visitor, address
        self.checked = 0.0  # by the loop's clock
        self._message: str | None = None
        self._refused: Refused | None = None
        self._has_news = asyncio.Event()

    @property
    def whose(self) -> str:
        return self.visitor.session_key or self.address

    def tell(self, message: str) -> None:
        """Instead of what it hasn't taken yet; that nothing has changed is news only to who waits."""
        if message != NOTHING_NEW or self._message is None:
            self._message = message
        self._has_news.set()

    def end(self, code: int, words: str) -> None:
        self._refused = self._refused or Refused(code, words)
        self._has_news.set()

    async def news(self) -> str:
        """Raises Refused when there will be none any more."""
        await self._has_news.wait()
        self._has_news.clear()
        if self._refused:
            raise self._refused
        message, self._message = self._message, None
        return message or NOTHING_NEW
