"""Chat: ask a model that answers now, and see which way its answer takes.

The page is for people with a login; their chats go the way that the API's go. What is said stays in the browser: the
site keeps of it what it keeps of every session, and no text.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required, permission_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from tracker import chats, epochs, stories
from tracker.answers import CHAT
from tracker.chats import Chat
from tracker.dashboard.pages import Ask, Context, Page, may_in_words, permissions_of
from tracker.fields import MAX_USER_CHARS
from tracker.groups import USE_CHAT
from tracker.middleware import request_id_of
from tracker.models import ChatSession, LanguageModel
from tracker.openai import read_chat
from tracker.views.responses import read_body

MAX_BODY_BYTES = 4 * 1024 * 1024
COMPLETION_ID = "X-Completion-Id"  # a header of the answer: what its route is asked by
FIXED = {"stream": True, "n": None, "safety_identifier": None}  # whatever the browser asks for


def context(ask: Ask) -> Context:
    models = [{"name": model.name, "problem": _problem(model, ask)} for model in LanguageModel.objects.all()]
    answering = [model for model in models if not model["problem"]]
    return {"models": models, "answering": answering, "wanted": ask.param("model")}


def _problem(model: LanguageModel, ask: Ask) -> str | None:
    """Why nobody can ask it now, in words."""
    if model.is_refused:
        return f"The operator refuses this model{f': {model.refusal_reason}' if model.refusal_reason else ''}."
    return epochs.route_problem(model, ask.now)


page = Page("chat", "Chat", context, permission=USE_CHAT, every_s=3.0)


def begin(request: HttpRequest) -> tuple[list[Chat], bool]:
    """The chat that a page asks for, in its user's name. Raises ApiError."""
    asked = read_chat(read_body(request, MAX_BODY_BYTES))
    asked = asked.model_copy(update=FIXED | {"user": _name(request)})
    begun = chats.begin(asked, CHAT, None, timezone.now(), request_id_of(request))
    completion = begun[0].answer.completion
    completion.headers = {**completion.headers, COMPLETION_ID: completion.completion_id}
    return begun, True


@require_GET
@login_required
@permission_required(USE_CHAT, raise_exception=True)
def route(request: HttpRequest, completion_id: str) -> HttpResponse:
    """The way of an answer that this user asked for here, as a part of the page. It changes when a node is lost."""
    mine = stories.sessions_with_hops().filter(api_key=None, user=_name(request))
    session = get_object_or_404(mine, completion_id=completion_id, choice=0)
    now = timezone.now()
    told: dict[str, Any] = {
        "session": stories.session_story(session, now),
        "is_running": session.state_at(now) == ChatSession.State.RUNNING,
        "may": may_in_words(permissions_of(request.user)),
    }
    response = render(request, "dashboard/chat_route.html", told)
    response["Cache-Control"] = "no-store"
    return response


def _name(request: HttpRequest) -> str:
    return request.user.get_username()[:MAX_USER_CHARS]
