"""A long list in parts: which rows of it a page shows, and the addresses of the parts before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet

from tracker.dashboard.pages import Ask

PER_PAGE = 50
PARAM = "page"  # of the query


@dataclass(frozen=True, slots=True)
class Paged:
    """For templates: `{% include "dashboard/parts/pages.html" with paged=… %}` shows the way to the other parts."""

    rows: Sequence[Any]
    number: int  # from 1 on
    total: int
    per_page: int
    params: tuple[tuple[str, str], ...]

    @property
    def num_pages(self) -> int:
        return max(1, -(-self.total // self.per_page))

    @property
    def first(self) -> int:
        return (self.number - 1) * self.per_page + 1

    @property
    def last(self) -> int:
        return min(self.total, self.number * self.per_page)

    @property
    def url_before(self) -> str:
        return self._url(self.number - 1)

    @property
    def url_after(self) -> str:
        return self._url(self.number + 1)

    def _url(self, number: int) -> str:
        others = [(name, value) for name, value in self.params if name != PARAM and value]
        return "?" + urlencode([*others, (PARAM, str(number))])


def paged(rows: QuerySet[Any] | Sequence[Any], ask: Ask, per_page: int = PER_PAGE) -> Paged:
    """The part that ?page= names; beyond either end the nearest. Two queries: how many there are, and these."""
    total = rows.count() if isinstance(rows, QuerySet) else len(rows)
    wanted = ask.param(PARAM, "1")
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 8 else 1
    number = min(max(1, number), max(1, -(-total // per_page)))
    shown = rows[(number - 1) * per_page : number * per_page]
    return Paged(list(shown), number, total, per_page, ask.params)
