"""POST /chat/answer: what the chat page asks, answered as the API answers. Async, as the API's views are.

A login, a permission and CSRF take the place of an API key; from there it is one path.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.http import require_POST

from tracker.dashboard import chat
from tracker.groups import USE_CHAT
from tracker.views.chat import answer


@require_POST
async def chat_answer(request: HttpRequest) -> HttpResponseBase:
    refusal = await sync_to_async(_refusal)(request)
    if refusal:
        error = {"message": refusal, "type": "invalid_request_error", "param": None, "code": "not_allowed"}
        return JsonResponse({"error": error}, status=403)
    return await answer(request, chat.begin)


def _refusal(request: HttpRequest) -> str | None:
    """Why this user may not chat, in words."""
    if not request.user.is_authenticated:
        return "You are logged out. Log in again, in another tab if you want to keep this chat, and send it once more."
    if not request.user.has_perm(USE_CHAT):
        return "You may not chat here: ask an admin of this site for the operator group."
    return None
