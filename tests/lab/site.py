"""A mesh of real processes: `manage.py serve` and `manage.py runnode`, on free ports, in a folder of the test."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import requests

from relay import wire
from tests.lab import record, warm
from tests.lab.namespaces import Namespace
from tests.lab.processes import Process, environment, free_port, manage, manage_py


@dataclass
class Answer:
    """A chat's answer as its user got it, with the trace that was asked for."""

    text: str
    ids: list[int]
    finish_reason: str
    usage: dict[str, int]
    hops: list[dict[str, Any]]
    deltas: list[str] = field(default_factory=list)
    completion_id: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)  # id, name and arguments of each

    @property
    def paths(self) -> list[str]:
        return [hop["path"] for hop in self.hops]


class Site:
    """One deployment. `python`: the interpreter of its processes, where that isn't this one's."""

    def __init__(
        self, folder: Path, *, public_url: str | None = None, python: str = sys.executable, **settings: str
    ) -> None:
        self.folder, self.python = folder, python
        self.port = free_port()
        self.url = public_url or f"http://127.0.0.1:{self.port}"
        self.local_url = f"http://127.0.0.1:{self.port}"
        self.env = environment(
            DATA_DIR=str(folder / "site"), PUBLIC_URL=self.url, ALLOW_PRIVATE_ENDPOINTS="on", **settings
        )
        self.nodes: list[Process] = []
        self.places: dict[str, Namespace] = {}  # by a node's name: its network, where that isn't the machine's
        self.process: Process | None = None
        self.serve_options: tuple[str, ...] = ()
        self.api_key = self.join_token = ""

    def __enter__(self) -> Self:
        if self.python == sys.executable:
            warm.begin()
        self.manage("migrate", "--verbosity", "0")
        self.start()
        self.api_key = self.manage("createapikey", "test")
        self.join_token = self.manage("createjointoken", "--label", "test")
        return self

    def __exit__(self, *exc: object) -> None:
        for process in [*reversed(self.nodes), self.process]:
            if process and process.is_running:
                process.stop()

    def manage(self, *arguments: str) -> str:
        return manage(*arguments, env=self.env, python=self.python)

    def start(self) -> None:
        serve = ["serve", "--host", "127.0.0.1", "--port", str(self.port), *self.serve_options]
        self.process = Process([*manage_py(self.python), *serve], self.env)
        self.process.wait_for(r"Listening on")

    def kill(self) -> None:
        assert self.process
        self.process.kill()

    def model(self, name: str, **options: str) -> None:
        """Sets fields of a model before a node fixes them: wire_dtype, prefill_chunk, context_length."""
        flags = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
        self.manage("languagemodel", name, *flags)

    def start_node(
        self, name: str, model: Path | str, layers: str, *options: str, python: str = sys.executable, **env: str
    ) -> Process:
        """A `runnode` process; `options` as on its command line, `--relay-only` when none says how it is reached."""
        if not {"--relay-only", "--listen"} & set(options):
            options = ("--relay-only", *options)
        if "--listen" in options and options[options.index("--listen") + 1] == "auto":
            options = tuple(f"127.0.0.1:{free_port()}" if option == "auto" else option for option in options)
        arguments = ["runnode", "--tracker", self.url, "--model", str(model), "--layers", layers, "--name", name]
        arguments += ["--state-dir", str(self.folder / "nodes" / name), "--threads", "1", *options]
        env = environment(MESHNET_JOIN_TOKEN=self.join_token, **env)
        is_warm = "LD_PRELOAD" not in env  # libraries are preloaded into what starts from nothing
        node = Process([*manage_py(python), *arguments], env, warm=is_warm, namespace=self.places.get(name))
        self.nodes.append(node)
        return node

    @contextlib.contextmanager
    def mesh(self, model: Path, cuts: list[str], *options: str, **env: str) -> Iterator[list[Process]]:
        """Nodes of one model, one for each layer range, until the block ends; ready when it begins."""
        nodes = [
            self.start_node(f"{model.name}-{number}", model, cut, *options, **env) for number, cut in enumerate(cuts)
        ]
        with self.serving(model.name, nodes):
            yield nodes

    @contextlib.contextmanager
    def serving(self, model_name: str, nodes: list[Process]) -> Iterator[None]:
        """These nodes until the block ends; ready, and the model listed, when it begins."""
        try:
            for node in nodes:
                node.wait_for(r"Ready: layers")
            self.wait_for_model(model_name)
            yield
        finally:
            for node in nodes:
                node.stop()
                self.nodes.remove(node)

    def peer_id(self, name: str) -> str:
        [[peer_id]] = self.rows("SELECT peer_id FROM tracker_node WHERE name = ?", name)
        return str(peer_id)

    def forgive(self) -> None:
        """What operators do in the admin: nodes that failed get sessions again at once."""
        self.rows("UPDATE tracker_node SET breaker_until = NULL, breaker_openings = 0, breaker_reason = ''")

    def give_duty(self, name: str, duty: str) -> None:
        """Also of the admin: works, paused or draining."""
        self.rows("UPDATE tracker_node SET duty = ? WHERE name = ?", duty, name)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.folder / "site" / "meshnet.sqlite3", timeout=20)) as database:
            with database:
                return database.execute(statement, values).fetchall()

    def node_key(self, name: str) -> str:
        return (self.folder / "nodes" / name / "node_key").read_text().strip()

    def health(self, name: str, asker: str) -> dict[str, Any]:
        """GET /health of a node through the relay, asked by another node of its model."""
        relay_addr = f"ws://127.0.0.1:{self.port}/rpc/{self.peer_id(name)}"
        with record.Caller(relay_addr, self.node_key(asker)) as caller:
            return dict(json.loads(caller.call("GET", "/health", {})[1]))

    def wait_for_model(self, name: str, deadline_s: float = 20) -> None:
        until = time.monotonic() + deadline_s
        while name not in self.model_names():
            assert time.monotonic() < until, f"{name} is not served; the site says: {self.log()[-3000:]}"
            time.sleep(0.1)

    def model_names(self) -> list[str]:
        return [entry["id"] for entry in self.get("/v1/models").json()["data"]]

    def log(self) -> str:
        return self.process.output if self.process else ""

    def get(self, path: str) -> requests.Response:
        return requests.get(self.local_url + path, headers=self.headers, timeout=20)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"}

    def post(self, path: str, body: Mapping[str, Any], *, stream: bool = False) -> requests.Response:
        return requests.post(self.local_url + path, json=dict(body), headers=self.headers, stream=stream, timeout=120)

    def register(self, credential: str, **said: Any) -> dict[str, Any]:
        """What the site answers to a node with two layers of its model, made up in the test's own process."""
        versions = {"protocol_version": wire.PROTOCOL_VERSION, "wire_versions": list(wire.WIRE_VERSIONS)}
        body = {"start_layer": 0, "end_layer": 2} | versions | said
        bearer = {"Authorization": f"Bearer {credential}"}
        answer = requests.post(f"{self.local_url}/api/nodes/register", json=body, headers=bearer, timeout=20)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def chat(self, model: str, prompt: str, **parameters: Any) -> Answer:
        """A chat, streamed, with its trace."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **parameters}
        return self.ask("/v1/chat/completions", body)

    def ask(self, path: str, body: dict[str, Any], *, is_streamed: bool = True) -> Answer:
        body = {"temperature": 0, **body, "meshnet": {"trace": True, **body.get("meshnet", {})}}
        if is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        with self.post(path, body, stream=is_streamed) as response:
            assert response.status_code == 200, response.text
            return assemble(events(response)) if is_streamed else whole(response.json())

    def story(self, completion_id: str) -> dict[str, Any]:
        """What the site tells of a session."""
        answer = self.get(f"/sessions/{completion_id}.json")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream, up to [DONE], which must come."""
    for line in response.iter_lines(decode_unicode=True):
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended without [DONE]")


def whole(body: dict[str, Any]) -> Answer:
    """An unstreamed answer."""
    choice, trace = body["choices"][0], body["meshnet"]
    text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
    answer = Answer(text, trace["ids"], choice["finish_reason"], body["usage"], trace["hops"], completion_id=body["id"])
    for call in choice.get("message", {}).get("tool_calls", []):
        answer.calls.append({"id": call["id"], **call["function"]})
    return answer


def assemble(stream: Iterator[dict[str, Any]]) -> Answer:
    answer = Answer("", [], "", {}, [])
    for event in stream:
        assert "error" not in event, event
        answer.completion_id = answer.completion_id or event["id"]
        assert event["id"] == answer.completion_id
        trace = event.get("meshnet", {})
        answer.ids += trace.get("ids", [])
        answer.hops = trace.get("hops", answer.hops)
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            piece = choice.get("text", delta.get("content")) or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    answer.calls.append({"id": call["id"], **call["function"]})
                    assert len(answer.calls) == call["index"] + 1
                else:
                    answer.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            answer.text += piece
            answer.deltas += [piece] if piece else []
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    return answer
