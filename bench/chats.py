"""A chat through a site as a benchmark sees it: when each token came, and what its hops say they took."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.lab.site import Site, events


@dataclass
class Chat:
    """`times`: when each token arrived, by time.perf_counter. `hops`: the trace's table."""

    started: float
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    hops: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Of decoding: the first token isn't counted. Tokens that come together came when the last of them did."""
        after_first = sum(moment > self.times[0] for moment in self.times)
        return after_first / (self.times[-1] - self.times[0])

    @property
    def first_token_s(self) -> float:
        return self.times[0] - self.started

    @property
    def num_steps(self) -> int:
        return int(self.hops[0]["steps"])

    def spent_ms(self, name: str) -> list[float]:
        """`ms_total`, `compute_ms` or `queue_ms` of each hop, over all its steps."""
        return [float(hop[name]) for hop in self.hops]


def ask(
    site: Site,
    model: str,
    prompt: str,
    num_tokens: int,
    *,
    is_chat: bool = True,
    may_end: bool = False,
    watch: Callable[[Chat], None] | None = None,
    **parameters: Any,
) -> Chat:
    """`num_tokens` of the greedy answer, streamed. `may_end`: fewer when the model has no more to say. `watch` is shown
    the chat whenever tokens have come."""
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": num_tokens, "stream": True}
    body |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    body |= {"meshnet": {"trace": True}, **parameters}
    chat = Chat(started=time.perf_counter())
    with site.post(f"/v1/{'chat/' if is_chat else ''}completions", body, stream=True) as response:
        assert response.status_code == 200, f"{model}: {response.text}"
        for event in events(response):
            assert "error" not in event, f"{model}: {event}"
            trace = event.get("meshnet", {})
            chat.ids += trace.get("ids", [])
            chat.times += [time.perf_counter()] * len(trace.get("ids", []))
            chat.prompt_ids = trace.get("prompt_ids", chat.prompt_ids)
            chat.hops = trace.get("hops", chat.hops)
            if watch and trace.get("ids"):
                watch(chat)
    assert may_end or len(chat.ids) == num_tokens, f"{model}: {len(chat.ids)} tokens instead of {num_tokens}"
    return chat


def ask_at_once(site: Site, model: str, prompts: list[str], num_tokens: int) -> list[Chat]:
    """A chat for each prompt, all begun together."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(site, model, prompt, num_tokens), prompts))


def tokens_per_s_in_all(chats: list[Chat]) -> float:
    """While every one of them decodes: from the last one's first token to the first one's last."""
    begin, end = max(chat.times[0] for chat in chats), min(chat.times[-1] for chat in chats)
    assert begin < end, "the chats didn't run at once: ask for more tokens"
    return sum(begin < moment <= end for chat in chats for moment in chat.times) / (end - begin)
