"""What a node answers, whichever door a request came through. No sockets here.

Two kinds of work never share threads. Steps, DELETE and /health never wait for the network: `begin` hands them to the
engine and returns. Chats wait for other nodes, so they have threads of their own, a bounded number over both doors;
otherwise two nodes that are each other's head would wait for each other for ever.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal

from nodes.answers import answer_now, answer_of, json_answer, kept, step_answer
from nodes.chat import Chat, Head, Order
from nodes.compiling import Compiler
from nodes.completion import CompletionError
from nodes.deadline import Deadline
from nodes.engine import Engine
from nodes.events import Answer
from nodes.failover import FAILOVER_WAIT_S
from nodes.grammar import Grammars
from nodes.keys import Key
from nodes.steps import Layers, StepHeaders, integer, required, session_of
from nodes.tickets import TicketBook
from relay import headers as names
from relay import served, wire
from relay.headers import Hop, Ticket, decode_route
from relay.wire import Code, WireError

Door = Literal["http", "relay"]

MAX_CHATS = 8
DEFAULT_CHUNK_TOKENS = 128
MAX_TOLD_SESSIONS = 256  # in one heartbeat
TELLING_S = 0.5  # of a chat's time, kept so that its error arrives before whoever asked gives up
_NONCE = re.compile(r"[0-9a-f]{32}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class NodeApi:
    def __init__(
        self,
        model_name: str,
        layers: Layers,
        engine: Engine,
        book: TicketBook,
        head: Head | None,
        node_key: Key,
        max_chats: int = MAX_CHATS,
        grammars: Grammars | None = None,
    ) -> None:
        self.model_name, self.layers, self._engine, self._book = model_name, layers, engine, book
        self._head, self._node_key, self._max_chats = head, node_key, max_chats
        self._compiler = Compiler(grammars, engine.submit)
        self._chats: dict[tuple[str, int], Chat] = {}  # that run, by session and the epoch each began with
        self._num_releasing = 0  # chats that have ended and free their hops, which may take as long as a dead one
        self._idle = threading.Condition()
        self._refusal: str | None = None  # why no chat is taken now

    def begin(self, request: wire.Request, door: Door) -> Future[Answer]:
        """Never waits, never raises: an error is an answer too."""
        sender = request.sender if door == "relay" else None
        try:
            _check_headers(request.headers)
            session = served.check_served(request.method, request.path)
            if request.path == "/health":
                return answer_now(self._health(request, door))
            if session:
                return self._delete(request, session, sender)
            if request.path == "/forward":
                return self._forward(request, sender)
            return self._begin_chat(request, sender)
        except WireError as error:
            return answer_now(wire.error_response(request.request_id, error.code, error.message))

    def refuse_chats(self, why: str | None) -> None:
        """While there is a reason, new chats are refused with it, and those that run end after the step in hand: who
        asked for them goes on elsewhere. Steps of other heads' chats are worked all the same."""
        with self._idle:
            self._refusal = why
        if why:
            self.end_chats(why)

    def end_chats(self, why: str) -> None:
        """Those that run, after the step in hand."""
        with self._idle:
            for chat in self._chats.values():
                chat.end(CompletionError(503, Code.DRAINING, why))

    def close(self, session: str, epoch: int) -> None:
        """All of the session up to this epoch is over here, the tracker says. Whoever has it now frees the hops."""
        with self._idle:
            for chat in self._running(session):
                if chat.epoch <= epoch:
                    chat.end(CompletionError(409, Code.STALE, "the session goes on at another head"))
        self._engine.close_session(session, epoch, self._book.end(session, epoch))

    def move(self, session: str) -> None:
        """The tracker wants a chat that this node heads to take another route."""
        with self._idle:
            for chat in self._running(session):
                chat.move()

    def session_epochs(self) -> dict[str, int]:
        """Of the sessions that this node holds, as many as a heartbeat may name."""
        return self._engine.session_epochs(MAX_TOLD_SESSIONS)

    def drain(self, deadline: Deadline) -> None:
        """Refuses new chats and ends those that run after the step in hand. Steps go on until the engine stops."""
        self.refuse_chats("this node is shutting down")
        with self._idle:
            self._idle.wait_for(lambda: not self._chats and not self._num_releasing, deadline.left_s())

    @property
    def num_chats(self) -> int:
        return len(self._chats)

    @property
    def is_idle(self) -> bool:
        """It heads no chat, and none that it headed still frees its hops."""
        return not self._chats and not self._num_releasing

    def _forward(self, request: wire.Request, sender: str | None) -> Future[Answer]:
        step = StepHeaders.read(request.headers)
        ticket = self._book.allow_step(
            request.headers, step.session, step.epoch, (step.start_layer, step.end_layer), sender
        )
        if step.dtype != ticket.dtype:
            raise WireError(Code.BAD_REQUEST, f"{names.DTYPE} must be {ticket.dtype}, as the ticket says")
        grammar = step.grammar_text(request.body)
        for_engine = step.for_engine(request.body, self.layers)
        is_tail = step.end_layer == self.layers.num_layers
        if step.sampling is not None:
            self._book.spend(step.session, step.position + step.shape[1] - step.num_drafts, step.num_drafts)
        worked = self._compiler.submit(for_engine, grammar)
        return answer_of(worked, request, lambda result: step_answer(result, request.request_id, step.dtype, is_tail))

    def _delete(self, request: wire.Request, session: str, sender: str | None) -> Future[Answer]:
        epoch = integer(request.headers, names.EPOCH)
        ticket = self._book.allow_close(request.headers, session, epoch, sender)
        closed = self._engine.close_session(session, epoch, self._book.until(ticket))

        def done(closed: Future[bool]) -> None:
            if not closed.cancelled() and not closed.exception():
                self._book.close(ticket)

        closed.add_done_callback(done)
        return answer_of(kept(closed), request, lambda _: json_answer(request.request_id, {}))

    def _health(self, request: wire.Request, door: Door) -> wire.Response:
        layers = {"start_layer": self.layers.start_layer, "end_layer": self.layers.end_layer}
        state = "draining" if self._refusal else "ok"
        load = self._engine.occupancy().as_dict()
        chats = {"chats": self.num_chats, "kept_bytes": self._head.keeping.num_bytes if self._head else 0}
        answer = {"state": state, "model": self.model_name, **layers, **load, **chats}
        nonce = request.headers.get(names.NONCE, "")
        proof = {names.PROOF: prove(str(self._node_key), nonce)} if door == "http" and _NONCE.fullmatch(nonce) else {}
        return json_answer(request.request_id, answer, proof)

    def _begin_chat(self, request: wire.Request, sender: str | None) -> Future[Answer]:
        if self._head is None:
            raise WireError(Code.FORBIDDEN, "this node doesn't hold the model's first layer; it heads no chat")
        session, epoch = session_of(request.headers), integer(request.headers, names.EPOCH)
        ticket = self._book.allow_chat(request.headers, session, epoch, sender)
        hops = decode_route(request.headers.get(names.ROUTE, "[]"))
        self._check_route(ticket, hops)
        chunk_tokens = integer(request.headers, names.PREFILL_CHUNK, DEFAULT_CHUNK_TOKENS)
        ticket_text = required(request.headers, names.TICKET)
        wait_ms = integer(request.headers, names.FAILOVER_WAIT_MS, int(FAILOVER_WAIT_S * 1000))
        order = Order(
            request_id=request.request_id,
            path=request.path,
            body=request.body,
            ticket=ticket,
            ticket_text=ticket_text,
            hops=hops,
            chunk_tokens=chunk_tokens,
            deadline=_deadline(request),
            failover_wait_s=wait_ms / 1000,
        )
        return self._start(Chat(order, self._head, lambda *following: self._allow_route(session, *following)))

    def _allow_route(self, session: str, ticket_text: str, epoch: int, hops: list[Hop]) -> Ticket:
        """The ticket of a session's next route, as the tracker has answered it. Raises WireError."""
        ticket = self._book.allow_chat({names.TICKET: ticket_text}, session, epoch, None)
        self._check_route(ticket, hops)
        return ticket

    def _check_route(self, ticket: Ticket, hops: list[Hop]) -> None:
        """The head follows what is signed, and nothing else."""
        signed = ticket.hops[1:]
        if tuple((hop.peer_id, hop.start_layer, hop.end_layer) for hop in hops) != signed:
            raise WireError(Code.FORBIDDEN, f"{names.ROUTE} isn't the route that the ticket signs")
        borders = [0, *(end for _, _, end in ticket.hops)]
        starts = [start for _, start, _ in ticket.hops]
        if borders[:-1] != starts or borders[-1] != self.layers.num_layers or borders[1] > self.layers.end_layer:
            raise WireError(Code.FORBIDDEN, "the ticket's route doesn't cover every layer once, or not with this node")

    def _start(self, chat: Chat) -> Future[Answer]:
        session, epoch = chat.order.ticket.session, chat.order.ticket.epoch
        with self._idle:
            if self._refusal:
                raise WireError(Code.DRAINING, self._refusal)
            older = self._running(session)
            if any(one.epoch >= epoch for one in older):
                raise WireError(Code.FORBIDDEN, "the session is running")
            leaving = self._num_leaving()
            for one in older:
                one.supersede()
            if max(self._num_current(), leaving) >= self._max_chats:
                raise WireError(Code.BUSY, f"this node heads {self._max_chats} chats, and takes no more")
            self._chats[session, epoch] = chat
        threading.Thread(target=self._run, args=(chat,), name=f"chat-{session[:8]}", daemon=True).start()
        return chat.answer

    def _running(self, session: str) -> list[Chat]:
        """Its chats here: more than one while an older one ends."""
        return [chat for (running, _), chat in self._chats.items() if running == session]

    def _num_current(self) -> int:
        return sum(not chat.is_superseded for chat in self._chats.values())

    def _num_leaving(self) -> int:
        """Threads whose chat goes on elsewhere or has ended; each may wait as long as a dead node lets it."""
        return self._num_releasing + len(self._chats) - self._num_current()

    def _run(self, chat: Chat) -> None:
        begun, ticket = chat.order.ticket.epoch, chat.order.ticket
        try:
            chat.run()
        finally:
            ticket = replace(ticket, epoch=chat.epoch)
            self._book.close(ticket)
            self._engine.close_session(ticket.session, ticket.epoch, self._book.until(ticket))
            with self._idle:
                del self._chats[ticket.session, begun]
                self._num_releasing += 1
        try:
            chat.release()
        finally:
            with self._idle:
                self._num_releasing -= 1
                self._idle.notify_all()


def prove(node_key: str, nonce: str) -> str:
    """HMAC-SHA256 of the nonce under the SHA-256 of the key's secret part: all that the tracker keeps of a key."""
    secret = node_key.partition(".")[2]
    return hmac.new(hashlib.sha256(secret.encode()).digest(), nonce.encode(), hashlib.sha256).hexdigest()


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise WireError(Code.BAD_REQUEST, f"header {name[:40]!r} holds a control character")


def _deadline(request: wire.Request) -> Deadline:
    asked_ms = integer(request.headers, names.DEADLINE_MS, int(wire.DEFAULT_DEADLINE_S * 1000))
    if request.deadline_ms is not None:
        asked_ms = min(asked_ms, request.deadline_ms)
    seconds = min(asked_ms / 1000, wire.MAX_DEADLINE_S)
    return Deadline.after(max(seconds - TELLING_S, 0.9 * seconds))
