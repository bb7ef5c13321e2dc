"""What two processes have said to each other: numbered messages, so that a loss is noticed. Pure bookkeeping.

Pub/sub loses messages without a word: a subscriber that falls behind is cut, a dead one is nobody. So messages of a
pair carry numbers, and what was received is acknowledged. A number left out, or a second without acknowledgement, and
everything between the two has failed: both throw away what they had and go on in the next epoch. The higher epoch
counts; who hears of one above its own has failed too. After a failure nothing but a probe is sent until the other side
has been heard in the new epoch, so a process that answers nothing costs one second once, not each request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from relay import wire

KIB = 1024
MESSAGE_BYTES = 60 * KIB  # of items, so that a message stays below 64 KiB
MAX_ITEMS = 256  # in one message
WINDOW_BYTES = 4 * 1024 * KIB  # sent and not acknowledged
MAX_WAITING_BYTES = 16 * 1024 * KIB  # answers that wait for room in the window
SMALL_BYTES = 4 * KIB  # up to that size there is room for a MiB more: for the errors and cancels of what is refused
MAX_ITEM_BYTES = wire.MAX_BODY_BYTES + wire.MAX_META_LENGTH + 2 * KIB  # a frame, and its caller's scope
ITEM_OVERHEAD_BYTES = 64
TICK_S = 0.1
ACKNOWLEDGED_TICKS = 10  # counted, not measured: a process that stood still itself blames nobody
PROBE_TICKS = 5
ACKNOWLEDGE_BYTES = 256 * KIB  # received, after which the acknowledgement doesn't wait for the next tick


@dataclass(frozen=True, slots=True)
class Message:
    """`number` 0: says what was received, and carries nothing. `is_cut`: the last item goes on in the next message."""

    epoch: int
    number: int
    acknowledged: int
    items: tuple[bytes, ...] = ()
    is_cut: bool = False
    is_probe: bool = False  # an answer is wanted


@dataclass(frozen=True, slots=True)
class Received:
    items: tuple[bytes, ...] = ()
    failure: str = ""  # why everything between the two has failed, before these items


class Pair:
    def __init__(self) -> None:
        self.epoch = 1
        self.is_doubtful = False  # nothing was heard from the other side since the last failure
        self._start()

    def _start(self) -> None:
        """Nothing said, nothing heard."""
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._unacknowledged: deque[tuple[int, int]] = deque()  # number, bytes
        self._unacknowledged_bytes = 0
        self._last_sent = 0
        self._last_received = 0
        self._ticks = 0
        self._progress_tick = 0  # of the last acknowledgement, or since when one is awaited
        self._partial = bytearray()
        self._owed_bytes = 0  # received since the last acknowledgement
        self._owes_now = False

    @property
    def outstanding_bytes(self) -> int:
        return self._unacknowledged_bytes + self._waiting_bytes

    @property
    def owes_word(self) -> bool:
        """Whether next_message has something that it hadn't before the last message was received."""
        return self._owes_now or (bool(self._waiting) and not self.is_doubtful)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a request of that size may still be offered."""
        return not self.is_doubtful and self.outstanding_bytes + num_bytes <= WINDOW_BYTES

    def offer(self, item: bytes) -> bool:
        """False: far more waits than the other side takes, or everything has failed and this belongs to it."""
        num_bytes = len(item) + ITEM_OVERHEAD_BYTES
        most = MAX_WAITING_BYTES + (1024 * KIB if len(item) <= SMALL_BYTES else 0)
        if self.is_doubtful or self._waiting_bytes + num_bytes > most:
            return False
        if not self.outstanding_bytes:
            self._progress_tick = self._ticks
        self._waiting.append(memoryview(item))
        self._waiting_bytes += num_bytes
        return True

    def next_message(self) -> Message | None:
        """What to send now, if anything. Called again until there is nothing."""
        if self.is_doubtful:
            return self._bare_message() if self._owes_now else None
        if self._waiting and self._unacknowledged_bytes < WINDOW_BYTES:
            return self._numbered_message()
        return self._bare_message() if self._owes_now else None

    def receive(self, message: Message) -> Received:
        if message.epoch < self.epoch:
            self._owes_now = True  # so that the other side hears of the epoch
            return Received()
        failure = ""
        if message.epoch > self.epoch:
            failure = "the other process began anew"
            self.epoch = message.epoch
            self._start()
        self.is_doubtful = False
        if message.is_probe:
            self._owes_now = True
        self._acknowledge(message.acknowledged)
        if message.number <= self._last_received:
            return Received(failure=failure)  # bare, or a second copy
        if message.number != self._last_received + 1:
            return Received(failure=self.fail("a message between the processes was lost"))
        self._last_received = message.number
        items = self._whole_items(message)
        if items is None:
            return Received(failure=self.fail("the other process sent too much in one piece"))
        return Received(items, failure)

    def tick(self) -> str:
        """Called each TICK_S. Why everything has failed, if it has."""
        self._ticks += 1
        if self.is_doubtful:
            self._owes_now = self._owes_now or self._ticks % PROBE_TICKS == 0
        elif self._owed_bytes:
            self._owes_now = True
        if self.outstanding_bytes and self._ticks - self._progress_tick > ACKNOWLEDGED_TICKS:
            return self.fail(f"the other process acknowledged nothing for {ACKNOWLEDGED_TICKS * TICK_S:.0f} s")
        return ""

    def fail(self, why: str) -> str:
        """The next epoch. Nothing of this one counts any more."""
        self.epoch += 1
        self._start()
        self.is_doubtful = self._owes_now = True
        return why

    def _numbered_message(self) -> Message:
        items: list[bytes] = []
        room, is_cut = MESSAGE_BYTES, False
        while self._waiting and room > 0 and len(items) < MAX_ITEMS:
            item = self._waiting.popleft()
            items.append(bytes(item[:room]))
            if len(item) > room:
                self._waiting.appendleft(item[room:])
                is_cut = True
            room -= len(items[-1]) + ITEM_OVERHEAD_BYTES
        num_bytes = sum(map(len, items)) + ITEM_OVERHEAD_BYTES * (len(items) - is_cut)
        self._waiting_bytes -= num_bytes
        self._last_sent += 1
        self._unacknowledged.append((self._last_sent, num_bytes))
        self._unacknowledged_bytes += num_bytes
        return Message(self.epoch, self._last_sent, self._acknowledgement(), tuple(items), is_cut)

    def _bare_message(self) -> Message:
        return Message(self.epoch, 0, self._acknowledgement(), is_probe=self.is_doubtful)

    def _acknowledgement(self) -> int:
        self._owed_bytes, self._owes_now = 0, False
        return self._last_received

    def _acknowledge(self, number: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            self._unacknowledged_bytes -= self._unacknowledged.popleft()[1]
            self._progress_tick = self._ticks

    def _whole_items(self, message: Message) -> tuple[bytes, ...] | None:
        self._owed_bytes += sum(map(len, message.items)) + ITEM_OVERHEAD_BYTES
        self._owes_now = self._owes_now or self._owed_bytes >= ACKNOWLEDGE_BYTES
        whole = []
        for at, item in enumerate(message.items):
            if message.is_cut and at == len(message.items) - 1:
                self._partial += item
            elif self._partial:
                whole.append(bytes(self._partial) + item)
                self._partial.clear()
            else:
                whole.append(item)
        return None if len(self._partial) > MAX_ITEM_BYTES else tuple(whole)
