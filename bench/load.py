"""The load: a process that asks and answers, and one that only answers where asking takes threads.

Callers and peers share a process, so that the relay like the echo has one process against it, which two cores can run.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench.sockets import Loop, read
from bench.tongues import Tongue, same_again, step
from relay import wire

GRACE_S = 60.0  # for an answer that is late; without one the run fails
FOR_EVER_S = 1e6


@dataclass(frozen=True)
class Line:
    """`callers` pairs of a caller at `caller_url` and a peer at `peer_url` (none: the caller's server answers)."""

    name: str
    tongue: Tongue
    caller_url: str
    peer_url: str = ""
    callers: int = 1
    is_kept: bool = True  # the callers' sockets; else one for each request

    def pairs(self) -> list[tuple[str, str]]:
        """(caller_id, peer_id): hexadecimal, other ones for each line."""
        prefix = self.name.encode().hex()[:20]
        return [(f"{prefix}{n:04x}ca", f"{prefix}{n:04x}ee") for n in range(self.callers)]


@dataclass(frozen=True)
class Sample:
    """What one run showed."""

    rtts_s: list[float]
    elapsed_s: float
    cpu_s: float  # that the asking process used

    @property
    def per_s(self) -> float:
        return len(self.rtts_s) / self.elapsed_s


class Caller:
    """Asks again as soon as it is answered, until its time is over."""

    def __init__(self, ws: Any, tongue: Tongue) -> None:
        self.ws, self.tongue = ws, tongue
        self.rtts_s: list[float] = []
        self.is_waiting = False

    def start(self, request: bytes | str, num_bytes: int, until: float) -> None:
        self._request, self._num_bytes, self._until = request, num_bytes, until
        self.rtts_s = []
        self.is_waiting = True
        self._ask()

    def heard(self, message: bytes) -> None:
        now = time.perf_counter()
        answer = self.tongue.decode_at_caller(self.ws, message)
        if answer is None:
            return
        check(answer, self._num_bytes)
        self.rtts_s.append(now - self._asked)
        if now < self._until:
            self._ask()
        else:
            self.is_waiting = False

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self.ws.send(self._request, self.tongue.opcode)


class Answering:
    """Lives in a process of its own: the peers of lines whose callers are elsewhere."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.loop = Loop()
        for line in lines:
            open_peers(self.loop, line)


class Asking:
    """Lives in a process of its own: the callers, and the peers where the callers' sockets are kept."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.loop = Loop()
        self.lines = {line.name: line for line in lines}
        for line in lines:
            if line.is_kept and line.peer_url:
                open_peers(self.loop, line)
        self.callers = {line.name: [self._open(line, *pair) for pair in line.pairs()] for line in lines if line.is_kept}

    def measure(self, name: str, num_bytes: int, num_callers: int, seconds: float) -> Sample:
        line = self.lines[name]
        body = os.urandom(num_bytes)
        cpu_s, began = time.process_time(), time.perf_counter()
        run = self._run_kept if line.is_kept else run_per_request
        rtts_s = run(line, body, num_callers, began + seconds)
        return Sample(rtts_s, time.perf_counter() - began, time.process_time() - cpu_s)

    def _open(self, line: Line, caller_id: str, peer_id: str) -> Caller:
        caller = Caller(line.tongue.open_caller(line.caller_url, caller_id, peer_id), line.tongue)
        self.loop.add(caller.ws, caller.heard)
        return caller

    def _run_kept(self, line: Line, body: bytes, num_callers: int, until: float) -> list[float]:
        callers = self.callers[line.name][:num_callers]
        for caller, (_, peer_id) in zip(callers, line.pairs(), strict=False):
            caller.start(line.tongue.encode(step(body), peer_id), len(body), until)
        waiting = callers
        while waiting := [caller for caller in waiting if caller.is_waiting]:
            first = waiting[0]
            self.loop.run(until + GRACE_S, lambda: not first.is_waiting)  # noqa: B023
            assert time.perf_counter() < until + GRACE_S, f"{line.name}: {len(waiting)} requests weren't answered"
        return [rtt_s for caller in callers for rtt_s in caller.rtts_s]


def open_peers(loop: Loop, line: Line) -> None:
    for _, peer_id in line.pairs():
        ws = line.tongue.open_peer(line.peer_url, peer_id)
        loop.add(ws, partial(answer, ws, line.tongue))


def answer(ws: Any, tongue: Tongue, message: bytes) -> None:
    asked = tongue.decode_at_peer(ws, message)
    if isinstance(asked, wire.Request):
        ws.send(tongue.encode(same_again(asked)), tongue.opcode)


def run_per_request(line: Line, body: bytes, num_callers: int, until: float) -> list[float]:
    """A socket for each request, as the record's hops: from its connect to the answer. A thread for each caller."""
    rtts_s: list[float] = []

    def ask(caller_id: str, peer_id: str) -> None:
        request = line.tongue.encode(step(body), peer_id)
        while (began := time.perf_counter()) < until:
            ws = line.tongue.open_caller(line.caller_url, caller_id, peer_id)
            ws.send(request, line.tongue.opcode)
            check(line.tongue.decode_at_caller(ws, read(ws)), len(body))
            rtts_s.append(time.perf_counter() - began)
            ws.shutdown()

    threads = [threading.Thread(target=ask, args=pair) for pair in line.pairs()[:num_callers]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(until - time.perf_counter() + GRACE_S)
        assert not thread.is_alive(), f"{line.name}: a request was not answered"
    return rtts_s


def check(answer: wire.Answer | None, num_bytes: int) -> None:
    assert isinstance(answer, wire.Response), answer
    assert answer.status == 200, answer.body
    assert len(answer.body) == num_bytes, f"{len(answer.body)} bytes came back instead of {num_bytes}"


def wait_until_reachable(line: Line) -> None:
    """Of the peers, the last one to be: another process learns of them a little later."""
    peer_id = line.pairs()[-1][1]
    ws = line.tongue.open_caller(line.caller_url, f"{peer_id}00", peer_id)
    until = time.perf_counter() + GRACE_S
    status = 0
    while status != 200:
        assert time.perf_counter() < until, f"{line.name}: its peers can't be reached, status {status}"
        time.sleep(0.1 if status else 0)
        ws.send(line.tongue.encode(step(b""), peer_id), line.tongue.opcode)
        while (answer := line.tongue.decode_at_caller(ws, read(ws))) is None:
            pass
        assert isinstance(answer, wire.Response), answer
        status = answer.status
    ws.shutdown()


class End:
    """A process that serves calls of `make(lines)`'s methods over a pipe, and its sockets in between."""

    def __init__(self, make: Callable[[Sequence[Line]], Any], lines: Sequence[Line]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(make, lines, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._pipe.recv()

    def call(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        outcome = self._pipe.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def __enter__(self) -> End:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def _serve(make: Callable[[Sequence[Line]], Any], lines: Sequence[Line], pipe: Connection) -> None:
    end = make(lines)
    end.loop.watch(pipe.fileno())
    pipe.send("ready")
    while True:
        end.loop.run(time.perf_counter() + FOR_EVER_S)
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(end, method)(*arguments))
        except Exception as error:  # for the other process to raise
            pipe.send(error)
