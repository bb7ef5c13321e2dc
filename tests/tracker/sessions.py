"""Sessions that tests of the tracker start from, begun as a request begins them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.utils import timezone

from tracker import answers, chats
from tracker.chats import Chat
from tracker.models import ApiKey, ChatSession
from tracker.openai import read_chat


def begin_chats(*, key: ApiKey | None = None, at: datetime | None = None, **fields: Any) -> list[Chat]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields
    return chats.begin(read_chat(json.dumps(body).encode()), answers.CHAT, key, at or timezone.now())


def begin_chat(**fields: Any) -> Chat:
    [chat] = begin_chats(**fields)
    return chat


def begin_session(**fields: Any) -> ChatSession:
    return ChatSession.objects.get(pk=begin_chat(**fields).session_pk)
