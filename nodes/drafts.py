"""Guesses at the next tokens, by looking up where the last few were seen before; and how many are worth a step.

A step of 1 + k tokens costs less than 1 + k steps, and the tail answers as many of the k as it would have chosen
itself. A text that repeats its prompt or itself, as summaries and code do, then comes several tokens a step.

How many are guessed follows from how often such guesses were right so far in the session, so that with the same text
the steps have the same shapes wherever they are worked. What is measured has only a veto: when drafts have cost more
time than they saved, the session does without for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_DRAFTS = 32  # of one step, that a tail takes: each costs it a row of logits
DEFAULT_DRAFTS = 8  # of one step, that a head guesses at most

# Sizes of the runs of tokens that are looked up, the surest first, and how far each is trusted before it is known
# better. Three tokens alone mislead in a list of numbers, where all entries begin alike.
_FIRST_TRUST = {5: 0.8, 3: 0.5, 2: 0.5}
_COST = 0.2  # of one more token in a step, in steps: between what wide and quantized arithmetic take
_LEARNING = 0.25  # weight of the latest guess in what is thought of the others
_PLAIN_STEPS = 2  # measured before drafts begin
_LOSS = 4.0  # plain steps' time that drafts may lose before they rest
_REST_TOKENS = 128


class PromptLookup:
    """The tokens so far, and for each short run of them where it ended last. A token costs the same however many
    there are."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            for size in _FIRST_TRUST:
                if len(self._ids) >= size:  # a run is entered when something follows it
                    self._ends[tuple(self._ids[-size:])] = len(self._ids)
            self._ids.append(token_id)

    def find(self) -> tuple[int, int]:
        """(size of the longest run that ended here before, where); (0, 0) when none has."""
        for size in _FIRST_TRUST:
            end = self._ends.get(tuple(self._ids[-size:]), 0)
            if end:
                return size, end
        return 0, 0

    def following(self, end: int, count: int) -> list[int]:
        """What came after it, and where that reaches the end of the text, the same again."""
        period = len(self._ids) - end
        return [self._ids[end + number % period] for number in range(count)]


class Drafter:
    """What one session guesses. Used by one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lookup = PromptLookup()
        self._trust = dict(_FIRST_TRUST)
        self._size = 0  # of the run that was found last, and what followed it, whether or not that went into the step
        self._guesses: list[int] = []
        self._pace = Pace()

    def extend(self, token_ids: Sequence[int]) -> None:
        """Tokens that a step without guesses gave, and before them the prompt."""
        if self._most:
            self._lookup.extend(token_ids)

    def propose(self, most: int) -> list[int]:
        """Guesses for the next step, `most` at most; none where none are worth it."""
        self._size, end = self._lookup.find() if self._most else (0, 0)
        if not self._size:
            self._guesses = []
            return []
        count = min(self._most, most, worth(self._trust[self._size])) if self._pace.allows() else 0
        self._guesses = self._lookup.following(end, max(1, count))  # one at least, to see whether it would be right
        return self._guesses[: max(0, count)]

    def learn(self, num_drafts: int, token_ids: Sequence[int], took_s: float) -> None:
        """What the step gave that had so many drafts."""
        self._pace.add(num_drafts, len(token_ids), took_s)
        for guess, token_id in zip(self._guesses, token_ids, strict=False):
            self._trust[self._size] += _LEARNING * ((guess == token_id) - self._trust[self._size])
        self.extend(token_ids)


class Pace:
    """Whether drafts save time here, in seconds as they were measured."""

    def __init__(self) -> None:
        self._num_plain, self._plain_s = 0, 0.0
        self._balance = 0.0  # what drafts saved, in plain steps
        self._rests = 0  # tokens to go without

    def allows(self) -> bool:
        return self._num_plain >= _PLAIN_STEPS and self._rests <= 0

    def add(self, num_drafts: int, num_tokens: int, took_s: float) -> None:
        self._rests -= num_tokens
        if not num_drafts:
            self._num_plain += 1
            weight = 1 / min(self._num_plain, 8)
            self._plain_s += weight * (took_s - self._plain_s)
            return
        saved = num_tokens - took_s / max(self._plain_s, 1e-9)
        self._balance = min(_LOSS, self._balance + max(-_LOSS / 2, saved))  # that one step hung isn't the drafts' fault
        if self._balance < -_LOSS:
            self._balance, self._rests = 0.0, _REST_TOKENS


def worth(trust: float) -> int:
    """Of how many guesses a step gives most tokens for its cost, each right with this probability if all before are.

    A step of k guesses gives 1 + trust + … + trust^k tokens and costs 1 + k * _COST.
    """
    best, best_gain, tokens = 0, 1.0, 1.0
    for count in range(1, MAX_DRAFTS + 1):
        tokens += trust**count
        gain = tokens / (1 + count * _COST)
        if gain > best_gain:
            best, best_gain = count, gain
    return best
