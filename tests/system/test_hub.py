"""Two machines take a model from a hub: each fetches its own layers' bytes, and together they answer as one would."""

from __future__ import annotations

from pathlib import Path

from nodes.sources import open_model
from nodes.text import Tokenizer
from tests.lab.hub import LocalHub
from tests.lab.site import Site
from tests.nodes.greedy import greedy_ids, load_hops
from tests.nodes.models import make_tiny_llama

NAME, TOKEN = "acme/tiny-chat", "hf_of-the-owner"
PROMPT = "hello world"


def test_two_nodes_fetch_a_half_each_and_answer_as_one(site: Site, tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", num_layers=8, intermediate=384, max_shard_size="400KB")
    site.model(NAME, wire_dtype="float32")
    with LocalHub({NAME: source}, token=TOKEN) as hub:
        nodes = []
        for name, layers in (("hub-head", "0:4"), ("hub-tail", "4:8")):
            env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
            env["MESHNET_CACHE_DIR"] = str(tmp_path / name)  # as on machines of their own
            nodes.append(site.start_node(name, NAME, layers, "--dtype", "float32", **env))
        with site.serving(NAME, nodes):
            answer = site.chat(NAME, PROMPT, max_tokens=12)
        fetched = hub.sent_weights
        assert not any(asked.headers.get("authorization") for asked in hub.asked if asked.is_cdn)

    folder = open_model(source)
    prompt = Tokenizer.load(folder).chat_prompt([{"role": "user", "content": PROMPT}])
    assert answer.ids == greedy_ids(load_hops(folder, [(0, 8)], "float32"), prompt, len(answer.ids), 128)
    assert len(answer.hops) == 2
    num_files = len(list(source.glob("*.safetensors")))
    assert fetched <= hub.size(NAME) + 2 * num_files * 16384  # each half once, the headers' beginnings twice
    assert all("Fetched " in node.output for node in nodes)
    assert not any(TOKEN in node.output for node in nodes)
