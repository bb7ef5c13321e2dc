"""The way of programs through Django: past all that only pages need, with few changes of threads.

Django runs each step of a middleware that isn't written for ASGI in the request's thread, and its own aren't: some
fifteen times a request changes to its thread and back, which costs more than all that a chat's request has to do, and
most of its time where the processor has other work. Sessions, logins, messages and CSRF are of pages that people open
in browsers. What is left of Django's computes and waits for nothing: it is called where it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string

PREFIXES = ("/v1/", "/api/")  # no page and no form is below these
OF_PAGES = {
    "servestatic.middleware.ServeStaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
}

Answer = Callable[[HttpRequest], Awaitable[HttpResponseBase]]
Application = Callable[..., Awaitable[Any]]


class ProgramsHandler(ASGIHandler):
    """Django's, with the middleware of settings.MIDDLEWARE that isn't of pages."""

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        answer: Any = convert_exception_to_response(self._get_response_async)  # type: ignore[attr-defined]
        for path in reversed(settings.MIDDLEWARE):
            if path not in OF_PAGES:
                answer = convert_exception_to_response(in_place(import_string(path)(answer), answer))
        self._middleware_chain = answer


def in_place(middleware: Any, get_response: Answer) -> Answer:
    """The same without a thread, for Django's own; what is written for ASGI is left as it is."""
    if not isinstance(middleware, MiddlewareMixin):
        return middleware  # type: ignore[no-any-return]

    async def answered(request: HttpRequest) -> HttpResponseBase:
        early = middleware.process_request(request) if hasattr(middleware, "process_request") else None
        response = early or await get_response(request)
        changed = middleware.process_response(request, response) if hasattr(middleware, "process_response") else None
        return changed or response

    return answered


def by_path(programs: Application, pages: Application) -> Application:
    """An ASGI application that gives a request to whoever it is for."""

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        await (programs if path.startswith(PREFIXES) else pages)(scope, receive, send)

    return application
