"""Random connects of both versions, requests, answers, cancels, cuts, PINGs and clocks: exactly one outcome each."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relay import wire
from relay.credit import weight_of
from relay.links import Close, Link, Send
from relay.switchboard import Switchboard
from relay.wire import Cancel, Chunk, Code, End, Error, Ping, Request, Response, WireError

NAMES = st.sampled_from("abc")
PICK = st.integers(0, 10_000)


class Exchange(RuleBasedStateMachine):
    """Keeps what each caller was told and each peer was asked, and never looks into the switchboard's books."""

    def __init__(self) -> None:
        super().__init__()
        self.board: Switchboard[None] = Switchboard("x", Counter(), Counter())
        self.now = 0.0
        self.links: list[Link[None]] = []  # open ones
        self.num_asked = 0
        self.open: dict[str, Link[None]] = {}  # request id -> its caller, until its outcome
        self.ended: Counter[str] = Counter()
        self.tasks: list[tuple[Link[None], str]] = []  # what peers have been asked, ended or not
        self.asked_of: dict[str, tuple[Link[None], str]] = {}  # request id -> the task it became
        self.waiting: dict[str, tuple[int, int]] = {}  # request id -> its bytes, and where they end in what was sent
        self.sent: Counter[Link[None]] = Counter()  # bytes of frames to each end of version 2
        self.read: Counter[Link[None]] = Counter()  # as far as a PONG has proved
        self.pings: dict[Link[None], list[tuple[int, int]]] = defaultdict(list)  # under way: number, position

    def apply(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Close):
                self.cut(effect.link)
                continue
            assert isinstance(effect, Send)
            self.sent[effect.link] += weight_of(effect.frame)
            match effect.frame:
                case Ping(n):
                    assert effect.link.version == 2
                    self.pings[effect.link].append((n, self.sent[effect.link]))
                case Request():
                    assert effect.link in self.links
                    self.tasks.append((effect.link, effect.frame.request_id))
                    asked = next(it for it, task in self.asked_of.items() if task == self.tasks[-1])
                    self.waiting[asked] = weight_of(effect.frame), self.sent[effect.link]
                case Cancel():
                    assert (effect.link, effect.frame.request_id) in self.tasks
                case Response() | Chunk() | End() | Error() as answer:
                    assert self.open[answer.request_id] is effect.link, "an answer to whom didn't ask, or a second one"
                    self.waiting.pop(answer.request_id, None)  # its answer has begun
                    if wire.is_last(answer):
                        self.end(answer.request_id)
                case other:
                    raise AssertionError(other)

    def end(self, request_id: str) -> None:
        del self.open[request_id]
        self.waiting.pop(request_id, None)
        self.ended[request_id] += 1

    def cut(self, link: Any) -> None:
        if link not in self.links:
            return
        self.links.remove(link)
        for request_id in [it for it, caller in self.open.items() if caller is link]:
            self.end(request_id)  # its caller has left: that is the outcome
        self.apply(self.board.detach(link, self.now))
        self.nobody_waits_for(link)

    def nobody_waits_for(self, link: Link[None]) -> None:
        assert not [it for it in self.open if self.asked_of[it][0] is link], "a request outlived its peer"

    @initialize()
    def two_peers_and_a_caller(self) -> None:
        for name in "ab":
            self.connect(name, registers=True)
        self.connect("c", registers=False)

    @rule(name=NAMES, registers=st.booleans(), version=st.sampled_from([1, 2, 2]))
    def connect(self, name: str, registers: bool, version: int = 2) -> None:
        link = self.board.attach(name, "m", None, version=version, now=self.now)
        self.links.append(link)
        if not registers:
            return
        old = self.board.peers.get(name)
        self.apply(self.board.register(link, self.now, self.now))
        assert self.board.peers[name] is link
        if old:
            self.nobody_waits_for(old)

    @rule(pick=PICK, to=NAMES)
    def ask_for_what_is_not_served(self, pick: int, to: str) -> None:
        self.ask(pick, to, 0, path="/x")

    @rule(pick=PICK, to=NAMES, size=st.sampled_from([0, 0, 0, wire.MAX_BODY_BYTES]))
    def ask(self, pick: int, to: str, size: int, path: str = "/forward") -> None:
        if not self.links:
            return
        self.num_asked += 1
        caller = self.links[pick % len(self.links)]
        request = Request(str(self.num_asked), "POST", path, body=b"x" * size, deadline_ms=1000)
        self.open[request.request_id] = caller
        effects = self.board.request(caller, to, request, self.now)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.frame, Request):
                self.asked_of[request.request_id] = effect.link, effect.frame.request_id
        self.apply(effects)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if not self.open:
            return
        request_id = list(self.open)[pick % len(self.open)]
        caller, asked = self.open[request_id], self.asked_of[request_id]
        self.end(request_id)
        [cancel, *_] = effects = self.board.cancel(caller, request_id, self.now)
        assert isinstance(cancel, Send)
        assert (cancel.link, cancel.frame) == (asked[0], Cancel(asked[1]))
        self.apply(effects)
        assert self.board.cancel(caller, request_id, self.now) == []

    @rule(pick=PICK)
    def cancel_what_is_not_open(self, pick: int) -> None:
        if self.links:
            assert self.board.cancel(self.links[pick % len(self.links)], "0", self.now) == []

    @rule(pick=PICK, skip=st.booleans())
    def read_and_answer_pings(self, pick: int, skip: bool) -> None:
        """`skip`: only the last one's answer arrives."""
        pinged = [link for link in self.links if self.pings[link]]
        if not pinged:
            return
        link = pinged[pick % len(pinged)]
        for n, position in self.pings[link][-1 if skip else 0 :]:
            self.board.pong(link, n, self.now)
            self.read[link] = position
        self.pings[link] = []

    @rule(pick=PICK)
    def answer_a_ping_that_never_was(self, pick: int) -> None:
        if self.links:
            self.board.pong(self.links[pick % len(self.links)], -1, self.now)

    @rule(pick=PICK, kind=st.sampled_from(["whole", "begin", "chunk", "end", "malformed"]), by_other=st.booleans())
    def answer(self, pick: int, kind: str, by_other: bool) -> None:
        if not self.tasks:
            return
        asked, relay_id = self.tasks[-1 - pick % min(len(self.tasks), 5)]  # recent ones, some still open
        link = self.links[pick % len(self.links)] if by_other and self.links else asked
        if link not in self.links:
            return
        frames: dict[str, wire.Answer] = {
            "whole": Response(relay_id, 200),
            "begin": Response(relay_id, 200, stream=True),
            "chunk": Chunk(relay_id, b"c"),
            "end": End(relay_id),
        }
        if kind == "malformed":
            effects = self.board.malformed(link, WireError(Code.BAD_REQUEST, "", relay_id), self.now)
        else:
            effects = self.board.answer(link, frames[kind], self.now)
        told = [it.frame for it in effects if isinstance(it, Send) and not isinstance(it.frame, Cancel)]
        if link is not asked:
            assert not told, "an answer from whom wasn't asked"
        for frame in told:
            assert isinstance(frame, Response | Chunk | End | Error)
            assert self.asked_of[frame.request_id] == (asked, relay_id), "an answer to another request"
        self.apply(effects)

    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        if self.links:
            self.cut(self.links[pick % len(self.links)])

    @rule(seconds=st.sampled_from([0.1, 0.6, 6.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.apply(self.board.expire(self.now))
        self.apply(self.board.beat(self.now))

    @invariant()
    def books_agree_with_what_the_ends_have_seen(self) -> None:
        assert len(self.board.flights) == len(self.open)
        assert all(count == 1 for count in self.ended.values())
        assert sum(self.board.outcomes.values()) == len(self.ended)
        assert sum(link.working.requests for link in self.links) == len(self.open)
        for link in self.links:
            assert 0 <= link.working.bytes <= wire.MAX_BYTES_IN_FLIGHT
            assert 0 <= link.asking.bytes <= wire.MAX_BYTES_IN_FLIGHT
        process = self.board.accounts.process
        assert (process.sockets, process.requests) == (len(self.links), len(self.open))
        assert process.bytes == sum(num_bytes for num_bytes, _ in self.waiting.values())

    @invariant()
    def each_byte_to_an_end_of_version_2_counts_once(self) -> None:
        """As sent until it is proved to be read, then as unanswered until its answer begins."""
        for link in self.links:
            if link.version == 2:
                mine = [self.waiting[it] for it in self.waiting if self.asked_of[it][0] is link]
                unanswered = sum(num_bytes for num_bytes, position in mine if position <= self.read[link])
                assert link.outstanding == self.sent[link] - self.read[link] + unanswered

    def teardown(self) -> None:
        self.now += 10
        self.apply(self.board.expire(self.now))
        assert not self.open, "a request without an outcome"
        assert len(self.ended) == self.num_asked
        for link in list(self.links):
            self.cut(link)
        assert not self.board.links
        assert not self.board.peers
        assert not self.board.accounts._callers


Exchange.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestExactlyOneOutcome = Exchange.TestCase
