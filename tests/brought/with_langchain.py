"""What a user of LangChain's OpenAI adapter does, in an environment that has nothing else. Prints what came."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

URL, KEY, MODEL = sys.argv[1:]


def told() -> dict[str, Any]:
    common: Any = {"base_url": URL, "api_key": KEY, "model": MODEL, "temperature": 0, "max_retries": 0}
    chat, plain = ChatOpenAI(**common), OpenAI(**common)
    answer = chat.invoke([("system", "Be brief."), ("human", "say F")])
    pieces = list(chat.stream("say F"))
    with_usage = list(ChatOpenAI(**common, stream_usage=True).stream("say F"))
    return {
        "whole": answer.content,
        "reason": answer.response_metadata["finish_reason"],
        "tokens": answer.usage_metadata,
        "streamed": [piece.content for piece in pieces if piece.content],
        "usage": [piece.usage_metadata for piece in with_usage if piece.usage_metadata],
        "batch": [one.content for one in chat.batch(["say F", "say x"])],
        "async": asyncio.run(chat.ainvoke("say F")).content,
        "plain": plain.invoke("say F"),
        "plain_streamed": "".join(plain.stream("say F")),
    }


print(json.dumps(told()))
