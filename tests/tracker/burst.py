"""One of two processes of a site in which many requests come at once: `python -m tests.tracker.burst [prepare]`.

For each key id on its input it begins as many chats as it can, from threads that start together, and says how many were
let in. Those of a key labelled "ends" are ended as soon as they have begun.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshweb.settings")
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from tracker import answers, chats, credentials, endings  # noqa: E402
from tracker.endings import Outcome  # noqa: E402
from tracker.errors import ApiError  # noqa: E402
from tracker.models import ApiKey, ChatSession, LanguageModel, Node, Shard, Usage  # noqa: E402
from tracker.openai import read_chat  # noqa: E402

NUM_THREADS, NUM_TRIES = 6, 3
ASKED = b'{"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}'
KEYS: list[dict[str, Any]] = [
    {"key_id": "key_1", "max_concurrent": 5},
    {"key_id": "key_2", "requests_per_minute": 7, "label": "ends"},
    {"key_id": "key_3", "tokens_per_minute": 560},  # each chat reserves a little over 100
]


def prepare() -> None:
    """The keys, and a model on one node, which could be reached if anybody asked it."""
    call_command("migrate", verbosity=0)
    model = LanguageModel.objects.create(name="tiny", num_layers=12, context_length=256, fingerprint="ab" * 32)
    key, now = credentials.mint(credentials.Kind.NODE), timezone.now()
    until = now + timedelta(hours=1)
    fields: dict[str, Any] = {"peer_id": "f" * 32, "key_id": key.key_id, "secret_hash": key.secret_hash}
    fields |= {"uses_relay": False, "endpoint": "http://192.0.2.1:7002", "endpoint_address": "192.0.2.1"}
    fields |= {"is_registered": True, "lease_until": until, "endpoint_proved_until": until, "last_seen": now}
    node = Node.objects.create(name="only", model=model, status=Node.Status.APPROVED, **fields)
    Shard.objects.create(node=node, start_layer=0, end_layer=12)
    for row in KEYS:
        ApiKey.objects.create(**row)


def rush(key: ApiKey) -> int:
    """How many of its requests were let in."""
    start = Barrier(NUM_THREADS, timeout=60)

    def ask() -> int:
        try:
            start.wait()
            return sum(is_let_in(key) for _ in range(NUM_TRIES))
        finally:
            connection.close()

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        return sum(asking.result() for asking in [threads.submit(ask) for _ in range(NUM_THREADS)])


def is_let_in(key: ApiKey) -> bool:
    try:
        [chat] = chats.begin(read_chat(ASKED), answers.CHAT, key, timezone.now())
    except ApiError as error:
        if error.status != 429:
            raise
        return False
    if key.label == "ends":
        endings.finish(chat, Outcome(ChatSession.State.DONE), timezone.now())
    return True


if __name__ == "__main__":
    if "prepare" in sys.argv:
        prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        told = (
            rush(ApiKey.objects.get(key_id=line.strip())) if line.startswith("key_") else Usage.objects.get().requests
        )
        print(told, flush=True)
