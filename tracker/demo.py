"""The demo's parts: the processes it starts, the mesh they make, the question it asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from django.conf import settings
from django.core.management.base import CommandError

READY_DEADLINE_S = 180.0
STOP_DEADLINE_S = 15.0
ANSWER_DEADLINE_S = 300.0
MANAGE = [sys.executable, str(settings.BASE_DIR / "manage.py")]


class Children:
    """Processes that end with the demo; each writes to a log file in the demo's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._running)):  # nodes before the site, so that they can say goodbye
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, arguments: list[str], env: dict[str, str]) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._running[name] = subprocess.Popen(
                [*MANAGE, *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops them in order
            )

    def wait_for(self, name: str, text: str) -> None:
        """Until `text` stands in the log of process `name`."""
        until = time.monotonic() + READY_DEADLINE_S
        while text not in (log := self._log(name)):
            if self._running[name].poll() is not None:
                raise CommandError(f"{name} has stopped. Its last lines:\n{log[-2000:]}")
            if time.monotonic() > until:
                raise CommandError(f"{name} isn't ready after {READY_DEADLINE_S:.0f} s. Its last lines:\n{log[-2000:]}")
            time.sleep(0.1)

    def watch(self) -> None:
        """Until a process ends by itself, which is an error."""
        while True:
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise CommandError(f"{name} has stopped. Its last lines:\n{self._log(name)[-2000:]}")
            time.sleep(0.5)

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


class Mesh:
    """The demo's site and its nodes, each with half of the layers."""

    def __init__(self, children: Children, model: str, port: int) -> None:
        self.children, self.model, self.port = children, model, port
        self.url = f"http://127.0.0.1:{port}"
        self.api_key = ""
        self.env = os.environ | {
            "DATA_DIR": str(children.folder / "site"),
            "PUBLIC_URL": self.url,
            **dict.fromkeys(("RELAY_URL", "RELAY_URLS", "REDIS_URL", "DATABASE_URL", "LOG_FORMAT", "LOG_LEVEL"), ""),
            "DEBUG": "off",
            "ALLOW_PRIVATE_ENDPOINTS": "on",
            "API_KEYS_REQUIRED": "on",
            "PYTHONUNBUFFERED": "1",
        }
        self.env.pop("DJANGO_SETTINGS_MODULE", None)

    def start(self, say: Callable[[str], object], *, admin_password: str) -> None:
        """Everything up to the point where a question can be asked. `admin_password` empty: no admin is made."""
        model_folder = Path(self._manage("fetchmodel", self.model))
        num_layers = int(json.loads((model_folder / "config.json").read_text())["num_hidden_layers"])
        say("Starting the site …")
        self._manage("migrate", "--verbosity", "0")
        if admin_password:
            self.env["DJANGO_SUPERUSER_PASSWORD"] = admin_password
            self._manage("createsuperuser", "--noinput", "--username", "admin", "--email", "admin@localhost")
            del self.env["DJANGO_SUPERUSER_PASSWORD"]
        self.children.start("site", ["serve", "--host", "127.0.0.1", "--port", str(self.port)], self.env)
        self.children.wait_for("site", "Listening on")
        self.api_key = self._manage("createapikey", "demo")
        self._start_nodes(num_layers, say)

    def _start_nodes(self, num_layers: int, say: Callable[[str], object]) -> None:
        token = self._manage("createjointoken", "--uses", "2", "--label", "demo")
        half = num_layers // 2
        for name, layers in (("node-1", (0, half)), ("node-2", (half, num_layers))):
            say(f"Starting {name} with layers {layers[0]}–{layers[1] - 1} of {num_layers}, reachable by nobody …")
            arguments = ["runnode", "--relay-only", "--tracker", self.url, "--name", name, "--model", self.model]
            arguments += ["--layers", f"{layers[0]}:{layers[1]}", "--state-dir", str(self.children.folder / name)]
            arguments += ["--threads", "1"]
            self.children.start(name, arguments, self.env | {"MESHNET_JOIN_TOKEN": token})
        for name in ("node-1", "node-2"):
            self.children.wait_for(name, "Ready: layers")

    def _manage(self, *arguments: str) -> str:
        """The last line that a command prints; what it says on stderr (progress) goes to the terminal."""
        run = subprocess.run([*MANAGE, *arguments], env=self.env, stdout=subprocess.PIPE, text=True)
        if run.returncode:
            raise CommandError(f"manage.py {arguments[0]} failed")
        return run.stdout.strip().rpartition("\n")[2]


@dataclass
class Reply:
    """What came back for one question, and how."""

    text: str = ""
    hops: list[dict[str, Any]] = field(default_factory=list)
    num_tokens: int = 0
    ttft_ms: float = 0.0
    tokens_per_s: float = 0.0


def ask(url: str, api_key: str, model: str, question: str, show: Callable[[str], None]) -> Reply:
    """One streamed chat through the public API; `show` gets each piece of text as it comes."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "stream": True,
        "meshnet": {"trace": True},
    }
    headers = {"Authorization": f"Bearer {api_key}"}
    reply, started = Reply(), time.monotonic()
    first_s = last_s = 0.0
    with httpx2.Client(timeout=ANSWER_DEADLINE_S, trust_env=False) as client:
        with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                raise CommandError(f"the site answered {response.status_code}: {response.read().decode()[:500]}")
            for event in _events(response):
                num_new = len(event.get("meshnet", {}).get("ids", []))
                if num_new:
                    last_s = time.monotonic() - started
                    first_s = first_s or last_s
                reply.num_tokens += num_new
                reply.hops = event.get("meshnet", {}).get("hops", reply.hops)
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content") or ""
                    reply.text += piece
                    show(piece)
    reply.ttft_ms = first_s * 1000
    if last_s > first_s:
        reply.tokens_per_s = (reply.num_tokens - 1) / (last_s - first_s)
    return reply


def hop_table(reply: Reply) -> str:
    """One line per hop: node, layers, path, milliseconds per token."""
    lines = [f"{'hop':<4} {'node':<10} {'layers':<9} {'path':<8} {'ms/token':>9}"]
    for number, hop in enumerate(reply.hops, 1):
        layers = f"{hop['start_layer']}–{hop['end_layer'] - 1}"
        ms = hop["ms_total"] / max(hop["steps"], 1)
        lines.append(f"{number:<4} {hop['node']:<10} {layers:<9} {hop['path']:<8} {ms:>9.1f}")
    lines.append(
        f"{reply.num_tokens} tokens, {reply.tokens_per_s:.1f} a second, the first after {reply.ttft_ms:.0f} ms"
    )
    return "\n".join(lines)


def _events(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise CommandError(f"the answer broke off: {event['error']['message']}")
            yield event
    raise CommandError("the answer broke off: the site closed the connection")
