"""Keys with limits as their holders meet them: over HTTP, with the official client, on real nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from tests.lab.site import Site


def test_a_key_is_held_to_its_limits_and_told_what_it_has_used(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    model = alias(tiny, "metered")
    with site.mesh(model, ["0:7"]):
        limits = ["--model", "metered", "--requests-per-minute", "2", "--tokens-per-minute", "5000"]
        key = site.manage("createapikey", "metered", *limits)
        client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0)
        asked: Any = {"model": "metered", "prompt": "once upon a time", "max_tokens": 8}
        with client:
            first = client.completions.with_raw_response.create(**asked)
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            streamed = client.completions.create(**asked, n=2, stream=True, stream_options={"include_usage": True})
            usages = [first.parse().usage, [chunk.usage for chunk in streamed][-1]]
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(**asked)
            assert refused.value.code == "rate_limit_exceeded"
            assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
            with pytest.raises(openai.NotFoundError):
                client.completions.create(**asked | {"model": "tiny"})
            assert [entry.id for entry in client.models.list()] == ["metered"]
    told = requests.get(f"{site.url}/v1/usage", headers={"Authorization": f"Bearer {key}"}, timeout=20).json()
    assert told["limits"]["requests_per_minute"]["used"] == 2
    [row] = told["data"]
    assert (row["model"], row["requests"], row["failed"]) == ("metered", 2, 0)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert row[name] == sum(getattr(usage, name) for usage in usages if usage), name
