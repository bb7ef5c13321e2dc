"""All that people reach on the site, read from its URLs: pages, what can be done from them, and the rest by name.

A page or an action that is added is tried by every test that goes through these; a URL that is neither must be named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, reverse

from tracker import urls
from tracker.models import LanguageModel, Move, Node

# Of programs, each with a test of its own: they carry a key, or tell nothing.
PROGRAMS = ("v1", "api/", "metrics", "live")
OTHERS = {"login", "logout", "documentation", "session-list-json", "session-detail-json", "chat-answer", "chat-route"}
OTHERS |= {"session-list", "session-detail"}  # until they are pages


@dataclass(frozen=True)
class Place:
    name: str
    converters: tuple[str, ...]  # names of the arguments in its path
    view: Any

    def path(self) -> str:
        """Of something that is there, in a crowd."""
        return reverse(self.name, kwargs={argument: _there(self.name, argument) for argument in self.converters})

    def __str__(self) -> str:
        return "-".join([self.name, *self.converters])


def _there(name: str, argument: str) -> Any:
    if argument == "completion_id":
        return "chatcmpl-7"  # it runs, and went on without a node
    if argument == "choice":
        return 0
    if argument == "pk" and name.startswith("move"):
        return Move.objects.filter(state=Move.State.PROPOSED).values_list("pk", flat=True)[0]
    if argument == "pk" and name.startswith(("model", "placement")):
        return LanguageModel.objects.values_list("pk", flat=True)[0]
    if argument == "pk":
        return Node.objects.order_by("pk").values_list("pk", flat=True)[0]
    raise AssertionError(f"say here what {argument} of {name} is like")


def _places() -> list[Place]:
    return [
        Place(pattern.name or "", tuple(pattern.pattern.converters), pattern.callback)
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and not str(pattern.pattern).startswith(PROGRAMS)
    ]


PAGES = [place for place in _places() if hasattr(place.view, "page")]
ACTIONS = [place for place in _places() if hasattr(place.view, "permission")]
REST = {place.name for place in _places() if not hasattr(place.view, "page") and not hasattr(place.view, "permission")}
