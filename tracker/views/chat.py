"""POST /v1/chat/completions and /v1/completions. Async: Django streams and notices a client that leaves only so."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from relay import client
from tracker import chats, proxy
from tracker.answers import CHAT, COMPLETION, Form
from tracker.auth import authenticate_api_key
from tracker.chats import Chat
from tracker.errors import ApiError
from tracker.listening import shutting_down
from tracker.middleware import request_id_of, timings_of
from tracker.openai import ChatRequest, CompletionRequest, read_chat, read_completion
from tracker.views.responses import openai_error, read_body, require_method

MAX_BODY_BYTES = 4 * 1024 * 1024

Read = Callable[[bytes], ChatRequest | CompletionRequest]
Begin = Callable[[HttpRequest], tuple[list[Chat], bool]]  # the chats and whether they are streamed; raises ApiError


@csrf_exempt
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    return await answer(request, _with_key(read_chat, CHAT))


@csrf_exempt
async def completions(request: HttpRequest) -> HttpResponseBase:
    return await answer(request, _with_key(read_completion, COMPLETION))


def _with_key(read: Read, form: Form) -> Begin:
    def begin(request: HttpRequest) -> tuple[list[Chat], bool]:
        api_key = authenticate_api_key(request)
        asked = read(read_body(request, MAX_BODY_BYTES))
        return chats.begin(asked, form, api_key, timezone.now(), request_id_of(request)), bool(asked.stream)

    return begin


async def answer(request: HttpRequest, begin: Begin) -> HttpResponseBase:
    """`begin` runs in the request's thread: who asks, what, and the rows."""
    timings = timings_of(request)
    try:
        require_method(request, "POST")
        if client.stops_at() < math.inf:  # it came on a connection from before
            raise shutting_down()
        begun, is_streamed = await _begin(request, begin)
        timings.end("begin")
        completion, events = begun[0].answer.completion, proxy.proxy_chats(begun)
        if not is_streamed:
            give_thread_back()
            whole = await proxy.whole(completion, events)
            timings.end("answer")
            return JsonResponse(whole, headers=completion.headers)
        await anext(events)  # the heads' consent: what one refuses gets a status of its own
        timings.end("head")
    except ApiError as error:
        return openai_error(error)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # no proxy may collect it
    headers |= completion.headers
    content = _without_thread(proxy.streamed(completion, events))
    return StreamingHttpResponse(content, content_type="text/event-stream; charset=utf-8", headers=headers)


async def _begin(request: HttpRequest, begin: Begin) -> tuple[list[Chat], bool]:
    """Where the rows of the chats are written by the time the client leaves, they are ended."""
    beginning = asyncio.ensure_future(sync_to_async(_begin_in_thread)(request, begin))
    try:
        return await asyncio.shield(beginning)
    except asyncio.CancelledError:
        with contextlib.suppress(ApiError):
            begun, _ = await beginning
            await proxy.abandon(begun)
        raise


def _begin_in_thread(request: HttpRequest, begin: Begin) -> tuple[list[Chat], bool]:
    try:
        return begin(request)
    finally:
        close_old_connections()  # a chat is long: its thread and its connection go back now


async def _without_thread(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    give_thread_back()  # here and not in the view: middleware has used it once more for the response
    async with contextlib.aclosing(content) as parts:  # type: ignore[type-var]
        async for part in parts:
            yield part


def give_thread_back() -> None:
    """Ends the thread that asgiref keeps for this request's synchronous code; later code of it would get a new one.

    Without this each open chat would hold a thread, idle from its first byte to its last.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)
