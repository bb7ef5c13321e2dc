"""A step on its way through the route: how far it has come, what each hop is told of it, and what it answers, checked.

What has been worked of a step isn't worked again when a hop after it is lost: it goes on from the boundary between
layers that it has reached.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodes import activations
from nodes.answers import read_sampled
from nodes.deadline import Deadline
from nodes.downstream import DownstreamHop, HopFailed, HopRefused
from nodes.drafts import MAX_DRAFTS
from nodes.grammar import Grammar
from nodes.hops import HopAnswer
from nodes.sampling import Sampled, Sampling
from relay import headers as names
from relay.wire import MAX_META_BYTES, Code

MAX_CHUNK_TOKENS = 512
_ID_BYTES = 8  # of a token id and its comma
_OTHER_HEADERS_BYTES = 1024  # of a step: all but its ids, its sampling and its ticket


@dataclass(frozen=True)
class Session:
    """What the tracker allowed in one epoch: who asks, until when, and what goes with every request to a hop."""

    id: str
    epoch: int
    ticket: str
    dtype: str  # of activations on the wire
    reserve_tokens: int  # prompt and answer together
    deadline: Deadline

    def headers(self) -> dict[str, str]:
        return {names.SESSION: self.id, names.EPOCH: str(self.epoch), names.TICKET: self.ticket}


@dataclass
class StepInHand:
    number: int
    token_ids: tuple[int, ...]
    position: int
    sampling: Sampling | None
    num_drafts: int = 0
    grammar: Grammar | None = None  # the one that the sampling names
    boundary: int = 0  # the first layer that it hasn't been through
    body: bytes = b""  # activations before that layer, as they cross
    shape: str = ""  # of these

    @property
    def end(self) -> int:
        return self.position + len(self.token_ids)

    @property
    def sure_end(self) -> int:
        """Without its drafts, of which nobody knows yet whether they are a part of the answer."""
        return self.end - self.num_drafts

    def is_same(self, other: StepInHand) -> bool:
        mine = (self.token_ids, self.position, self.sampling, self.num_drafts)
        return mine == (other.token_ids, other.position, other.sampling, other.num_drafts)

    def arrive(self, boundary: int, body: bytes, dtype: str) -> None:
        """Activations before that layer are there."""
        num_tokens = len(self.token_ids)
        self.boundary, self.body = boundary, body
        self.shape = activations.format_shape((1, num_tokens, len(body) // num_tokens // names.DTYPE_BYTES[dtype]))

    def through(self, hop: DownstreamHop, session: Session, usual_s: float) -> None:
        """Has the hop work it, which isn't the tail. Raises HopRefused, HopFailed."""
        answer = hop.step(self._headers(hop, session), self.body, session.deadline, usual_s)
        if answer.headers.get(names.SHAPE) != self.shape or len(answer.body) != len(self.body):
            got = f"{answer.headers.get(names.SHAPE)} in {len(answer.body)} bytes"
            wanted = f"{self.shape} in {len(self.body)} were asked for"
            raise HopFailed(f"pipeline error: {hop} answered activations of {got}; {wanted}", hop, Code.INTERNAL)
        self.boundary, self.body = hop.hop.end_layer, answer.body
        self._passed(hop)

    def to_tail(self, hop: DownstreamHop, session: Session, usual_s: float) -> tuple[list[Sampled], int]:
        """What the tail sampled, and how many drafts it takes. Raises HopRefused, HopFailed."""
        headers = self._headers(hop, session) | {names.TOKENS: ",".join(map(str, self.token_ids))}
        if self.sampling is not None:
            headers[names.SAMPLING] = self.sampling.to_json()
        answer = self._in_form(hop, headers, session, usual_s)
        self._passed(hop)
        try:
            return read_sampled(answer.body), _drafts_taken(answer)
        except ValueError as error:
            text = f"pipeline error: {hop} answered no list of token ids: {error}"
            raise HopFailed(text, hop, Code.INTERNAL) from None

    def _passed(self, hop: DownstreamHop) -> None:
        hop.num_held = self.end
        hop.statistics.reach(self.sure_end)

    def _in_form(self, hop: DownstreamHop, headers: dict[str, str], session: Session, usual_s: float) -> HopAnswer:
        """The tail's answer. What the answer's grammar is, it is told before it samples by it, and when it has
        forgotten: it then asks before it touches anything."""
        grammar = self.grammar if self.sampling is not None else None
        if grammar is None or hop.knows_grammar:
            try:
                return hop.step(headers, self.body, session.deadline, usual_s)
            except HopRefused as error:
                if grammar is None or error.code != Code.NO_GRAMMAR:
                    raise
        hop.knows_grammar = False
        text = grammar.text.encode()
        told = headers | {names.GRAMMAR_BYTES: str(len(text))}
        answer = hop.step(told, self.body + text, session.deadline, usual_s)
        hop.knows_grammar = True
        return answer

    def _headers(self, hop: DownstreamHop, session: Session) -> dict[str, str]:
        headers = session.headers() | {
            names.STEP: str(self.number),
            names.POSITION: str(self.position),
            names.SHAPE: self.shape,
            names.DTYPE: session.dtype,
            names.START_LAYER: str(hop.hop.start_layer),
            names.END_LAYER: str(hop.hop.end_layer),
            names.DEADLINE_MS: str(max(1, int(session.deadline.left_s() * 1000))),
            "content-type": "application/octet-stream",
        }
        if self.position == 0:
            headers[names.RESERVE] = str(session.reserve_tokens)
        if self.num_drafts:
            headers[names.DRAFTS] = str(self.num_drafts)
        return headers


def chunk_size(asked: int, width: int, dtype: str, header_bytes: int = 0, grammar_bytes: int = 0) -> int:
    """Tokens per prefill step: the model's number, unless their activations or ids wouldn't fit in a message.

    header_bytes: of the ticket and the sampling, beside which the ids travel; grammar_bytes: of the text that
    travels with the activations. 0 where not even one id fits.
    """
    most = names.most_tokens(width, dtype, grammar_bytes)
    room = (MAX_META_BYTES - _OTHER_HEADERS_BYTES - header_bytes) // _ID_BYTES
    return max(0, min(max(1, min(asked, MAX_CHUNK_TOKENS, most)), room))


def _drafts_taken(answer: HopAnswer) -> int:
    """Of one step, by a tail that says so: another would take drafts for the text itself."""
    told = answer.headers.get(names.DRAFTS, "")
    return min(int(told), MAX_DRAFTS) if told.isascii() and told.isdigit() and len(told) < 4 else 0
