"""What a user of the official `openai` package does, in an environment that has nothing else. Prints what came."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai

URL, KEY, MODEL = sys.argv[1:]
MESSAGES: Any = [{"role": "user", "content": "say F"}]
USAGE: Any = {"include_usage": True}


def told() -> dict[str, Any]:
    client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
    completions = client.chat.completions
    asked: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
    whole = completions.create(**asked, user="me", seed=7)
    chunks = list(completions.create(**asked, stream=True, stream_options=USAGE))
    with completions.stream(**asked) as events:
        gathered = events.get_final_completion()
    plain = client.completions.create(model=MODEL, prompt="say F", temperature=0, max_tokens=3, stop=["fox"])
    with client.with_streaming_response.chat.completions.create(**asked, stream=True) as raw:
        lines = list(raw.iter_lines())
    return {
        "models": [model.id for model in client.models.list()],
        "model": client.models.retrieve(MODEL).id,
        "whole": whole.choices[0].message.content,
        "request_id": whole._request_id or "",
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "usage": chunks[-1].usage == whole.usage,
        "gathered": gathered.choices[0].message.content,
        "plain": plain.choices[0].text,
        "last_line": [line for line in lines if line][-1],
        "async": asyncio.run(told_async()),
        "refused": refused(client),
    }


async def told_async() -> str:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def refused(client: openai.OpenAI) -> list[str]:
    """The package's own exceptions."""
    names = []
    stranger = client.with_options(api_key="wrong")
    for ask in (
        lambda: client.chat.completions.create(model="nobody", messages=MESSAGES),
        lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, store=True),
        lambda: stranger.models.list(),
    ):
        try:
            ask()
        except openai.APIStatusError as error:
            names.append(f"{type(error).__name__} {error.code} {error.param}")
    return names


print(json.dumps(told()))
