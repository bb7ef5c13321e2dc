"""All that people reach on the site, read from its URLs: pages, what can be done from them, and the rest by name.

A page or an action that is added is tried by every test that goes through these; a URL that is neither must be named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.urls import URLPattern, reverse

from tracker import operating, urls
from tracker.models import LanguageModel, Move, Node

# Of programs, each with a test of its own: they carry a key, or tell nothing.
PROGRAMS = ("v1", "api/", "metrics", "live")
OTHERS = {
    "confirm",
    "login",
    "logout",
    "documentation",
    "session-list-json",
    "session-detail-json",
    "chat-answer",
    "chat-route",
}

# Which of every 20 nodes of a crowd an action is for (tests/tracker/crowd/machines.py); for the others the first.
NODE_FOR = {"approve": 4, "lift_ban": 6, "resume": 7, "use_again": 9}
SENT = {"node-ban": {"lasts": "1h"}, "placement-setting": {"rebalancing": LanguageModel.Rebalancing.OFF.value}}


@dataclass(frozen=True)
class Place:
    name: str
    arguments: tuple[str, ...]  # in its path
    view: Any = field(compare=False)
    what: str = ""  # of several things that can be done there

    def path(self) -> str:
        """Of something that is there, in a crowd."""
        return reverse(self.name, kwargs={argument: self._there(argument) for argument in self.arguments})

    @property
    def sent(self) -> dict[str, str]:
        return SENT.get(self.name, {})

    def _there(self, argument: str) -> Any:
        if argument == "completion_id":
            return "chatcmpl-7"  # it runs, and went on without a node
        if argument == "choice":
            return 0
        if argument == "name":
            return self.what
        if argument == "pk" and self.name.startswith("move"):
            return Move.objects.filter(state=Move.State.PROPOSED).values_list("pk", flat=True)[0]
        if argument == "pk" and self.name.startswith("placement"):
            return LanguageModel.objects.values_list("pk", flat=True)[0]
        if argument == "pk":
            return Node.objects.order_by("pk").values_list("pk", flat=True)[NODE_FOR.get(self.what, 0)]
        raise AssertionError(f"say here what {argument} of {self.name} is like")

    def __str__(self) -> str:
        return "-".join([self.name, *([self.what] if self.what else self.arguments)])


def _places() -> Iterator[Place]:
    for pattern in urls.urlpatterns:
        if isinstance(pattern, URLPattern) and not str(pattern.pattern).startswith(PROGRAMS):
            arguments, name = tuple(pattern.pattern.converters), pattern.name or ""
            for what in operating.ACTIONS if name == "node-act" else ("",):
                yield Place(name, arguments, pattern.callback, what)


PAGES = [place for place in _places() if hasattr(place.view, "page")]
ACTIONS = [place for place in _places() if hasattr(place.view, "permission")]
REST = {place.name for place in _places() if not hasattr(place.view, "page") and not hasattr(place.view, "permission")}
