"""One chat at its head, from its request to the end of its stream, whatever that end is."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any

from nodes.boundaries import Boundaries, Budget
from nodes.briefs import Brief
from nodes.completion import CompletionError
from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop
from nodes.drafts import DEFAULT_DRAFTS
from nodes.engine import Engine
from nodes.events import KEEPALIVE_S, Answer, Cancelled, EventStream, StreamAnswer
from nodes.failover import FAILOVER_WAIT_S, Allow, Failover
from nodes.forwarding import Session, chunk_size
from nodes.generation import Generation
from nodes.grammar import Grammars
from nodes.hops import Dialler
from nodes.pipeline import Pipeline
from nodes.reroute import Rerouter
from nodes.resume import Replay
from nodes.sessions import Stale
from nodes.shown import shown
from nodes.text import Tokenizer
from nodes.writer import Writer
from relay import wire
from relay.headers import Hop, Ticket

logger = logging.getLogger(__name__)

# For a request to be read, its prompt made into tokens and its grammar checked: as long as the stream isn't open, what
# is wrong with it has a status of its own. A head that says nothing for longer is taken for lost.
READING_S = 3.0
NUM_TOLD = 8  # of the nodes that a chat went on without, told while it runs


@dataclass(frozen=True)
class Order:
    """A chat whose envelope has passed every check; its body hasn't been read yet."""

    request_id: str
    path: str
    body: bytes
    ticket: Ticket
    ticket_text: str
    hops: Sequence[Hop]  # after the head
    chunk_tokens: int
    deadline: Deadline
    failover_wait_s: float = FAILOVER_WAIT_S


@dataclass(frozen=True)
class Head:
    """What a chat works with on this node."""

    peer_id: str
    width: int
    context_length: int
    engine: Engine
    tokenizer: Tokenizer
    dialler: Dialler
    vocab_size: int
    max_drafts: int = DEFAULT_DRAFTS
    rerouter: Rerouter | None = None  # None: a lost hop is the end of its sessions
    grammars: Grammars | None = None  # None: with this tokenizer no answer can be held to a form
    keeping: Budget = field(default_factory=lambda: Budget(0))  # for activations, of all chats together


class Chat:
    """`answer` is resolved with the stream once there is something to say or a second has passed since the request was
    read, and with an error and its status when one is found before that."""

    def __init__(self, order: Order, head: Head, allow: Allow) -> None:
        self._stream = EventStream()
        self.order = replace(order, deadline=order.deadline.unless(self._stream.cancelled))
        self._head, self._allow = head, allow
        self.answer: Future[Answer] = Future()
        self.answer.add_done_callback(self._look_for_cancel)
        self._opening = threading.Lock()
        self._opener = threading.Timer(KEEPALIVE_S, self._open)
        self._ended_by: CompletionError | None = None
        self._pipeline: Pipeline | None = None
        self._failover: Failover | None = None
        self._writer: Writer | None = None
        self._replay: Replay | None = None  # of a chat that another head has begun
        self.shall_move = False
        self._is_superseded = False  # a later epoch was seen: the session belongs to another head

    @property
    def epoch(self) -> int:
        """Of its route now; its own caches are closed up to this one at the end."""
        return self._pipeline.session.epoch if self._pipeline else self.order.ticket.epoch

    def end(self, error: CompletionError) -> None:
        """Ends it before its next step, with an error that its user is shown."""
        self._ended_by = error

    def supersede(self) -> None:
        """Ends it before its next step: its session goes on in a later epoch, whose caches are no longer its own."""
        self._is_superseded = True
        self._stream.cancel()

    @property
    def is_superseded(self) -> bool:
        return self._is_superseded

    def move(self) -> None:
        """The tracker wants its route to leave a node: before the next step another is asked for."""
        self.shall_move = True

    def run(self) -> None:
        self._open_in(READING_S)
        try:
            self._generate()
            self._open()
            self._stream.finish(self._summary())
        except Cancelled:
            self.answer.cancel()
        except Exception as error:
            if not self._stream.is_cancelled:  # else whatever it was has come of that
                self._fail(shown(error))
            is_stale = isinstance(error, Stale) or getattr(error, "code", "") == wire.Code.STALE
            self._is_superseded = self._is_superseded or is_stale
        finally:
            self._opener.cancel()

    def release(self) -> None:
        """Frees the session on the hops, after the client has its answer."""
        if self._pipeline is None:
            return
        if self._is_superseded:
            self._pipeline.close()
        else:
            self._pipeline.release()

    def _generate(self) -> None:
        order, head = self.order, self._head
        facts = head.tokenizer, head.vocab_size, head.context_length
        brief = Brief.read(order.path, order.body, order.ticket, *facts, head.grammars)
        self._open_in(KEEPALIVE_S)
        chunk_tokens = self._chunk_tokens(brief)
        self._pipeline = self._new_pipeline(brief)
        self._writer = writer = Writer(brief.request, brief.prompt_ids, head.tokenizer, brief.max_tokens)
        wait_s = order.failover_wait_s
        self._failover = failover = Failover(self._pipeline, head.rerouter, self._allow, self._new_hop, wait_s)
        known_ids, told = brief.known_ids, brief.request.resume
        if told:
            self._replay = Replay(order.ticket.epoch, len(known_ids))
            self._send(writer.resume(told))
        drawn = brief.sampling, chunk_tokens, head.max_drafts
        generation = Generation(self._pipeline, known_ids, *drawn, failover=failover)
        for token in () if writer.finish_reason else generation.tokens(self._check):
            if self._replay and self._replay.compute_ms is None:
                self._replay.end(self._pipeline.hop_table())
            self._send(writer.push(token))
            if writer.finish_reason:
                return

    def _send(self, event: dict[str, Any] | None) -> None:
        if event:
            self._open()
            if self._pipeline and self._pipeline.is_due():
                event["meshnet"]["progress"] = self._story(NUM_TOLD)
            self._stream.send(event, self.order.deadline)

    def _chunk_tokens(self, brief: Brief) -> int:
        order = self.order
        header_bytes = len(order.ticket_text) + len(brief.sampling.to_json())
        grammar_bytes = len(brief.grammar.text.encode()) if brief.grammar else 0
        chunk_tokens = chunk_size(order.chunk_tokens, self._head.width, order.ticket.dtype, header_bytes, grammar_bytes)
        if not chunk_tokens:
            message = f"logit_bias is too long beside a route of {len(order.ticket.hops)} nodes: give fewer entries"
            raise CompletionError(400, wire.Code.BAD_REQUEST, message, "logit_bias")
        return chunk_tokens

    def _new_pipeline(self, brief: Brief) -> Pipeline:
        order, head = self.order, self._head
        ticket, reserve_tokens = order.ticket, len(brief.prompt_ids) + brief.max_tokens
        session = Session(ticket.session, ticket.epoch, order.ticket_text, ticket.dtype, reserve_tokens, order.deadline)
        hops = [self._new_hop(hop) for hop in order.hops]
        kept = Boundaries(head.keeping)
        return Pipeline(session, head.engine, ticket.hops[0][1:], head.peer_id, hops, kept, brief.grammar)

    def _new_hop(self, hop: Hop) -> DownstreamHop:
        return DownstreamHop(hop, self._head.dialler)

    def _check(self) -> None:
        self._stream.check()
        if self._ended_by:
            raise self._ended_by
        if self.shall_move and self._failover and self._writer:
            self.shall_move = False
            self._failover.move(self._writer.usage()["total_tokens"])

    def _open_in(self, seconds: float) -> None:
        """Not before, unless there is something to say."""
        self._opener.cancel()
        self._opener = threading.Timer(seconds, self._open)
        self._opener.daemon = True
        self._opener.start()

    def _open(self) -> None:
        with self._opening, contextlib.suppress(InvalidStateError):
            if not self.answer.done():
                self.answer.set_result(StreamAnswer(self.order.request_id, self._stream))

    def _fail(self, error: CompletionError) -> None:
        """Tells it as a status if nothing was told so far, as an event otherwise."""
        logger.warning("session %s ends: %s: %s", self.order.ticket.session[:8], error.code, _for_log(error))
        summary = self._summary()
        with self._opening, contextlib.suppress(InvalidStateError):
            if not self.answer.done():
                content = json.dumps({"error": error.body(), **summary}).encode()
                headers = {"content-type": "application/json"}
                self.answer.set_result(wire.Response(self.order.request_id, error.status, headers, content))
                return
        self._stream.finish(summary, {"error": error.body(), "meshnet": {}})

    def _summary(self) -> dict[str, Any]:
        usage = {"usage": self._writer.usage()} if self._writer else {}
        return {"meshnet": {"done": True, **usage, **self._story()}}

    def _story(self, most: int | None = None) -> dict[str, Any]:
        """Of its route and its steps; `most`: of what it went on without, no more than the last of them."""
        if self._pipeline is None:
            return {"hops": []}
        left, steps = self._pipeline.left_table(), self._pipeline.last_steps()
        failovers = [self._replay.as_dict()] if self._replay else []
        failovers += [one.as_dict() for one in self._failover.switched] if self._failover else []
        told = {"left": left[-most:] if most else left, "failovers": failovers[-most:] if most else failovers}
        told |= {"steps": steps}
        return {"hops": self._pipeline.hop_table(), **{name: rows for name, rows in told.items() if rows}}

    def _look_for_cancel(self, answer: Future[Answer]) -> None:
        if answer.cancelled():
            self._stream.cancel()


def _for_log(error: CompletionError) -> str:
    """What is the client's to mend is told the client: its words may be in it, and are in no log."""
    if error.status not in (400, 413):
        return error.message
    return f"its {error.param.partition('.')[0]}" if error.param else "its request"
