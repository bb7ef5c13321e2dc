"""What an API key may use, and what is said where that isn't enough. Pure: metering.py hands in what counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tracker.errors import ApiError
from tracker.words import counted

CODE = "rate_limit_exceeded"
ABOVE = "above_key_limit"  # clients ask again after the other


@dataclass(frozen=True, slots=True)
class Limit:
    """One of a key's limits, and its words in messages."""

    name: str  # of the column of ApiKey
    counts: str  # "requests" or "tokens"
    within: str  # which of them, in words

    @property
    def words(self) -> str:
        return f"{self.counts} {self.within}"

    def of(self, number: int) -> str:
        """ "1 request per minute", "60 requests per minute"."""
        return f"{counted(number, self.counts.removesuffix('s'))} {self.within}"


REQUESTS_PER_MINUTE = Limit("requests_per_minute", "requests", "per minute")
TOKENS_PER_MINUTE = Limit("tokens_per_minute", "tokens", "per minute")
TOKENS_PER_DAY = Limit("tokens_per_day", "tokens", "per day (UTC)")
MAX_CONCURRENT = Limit("max_concurrent", "requests", "at the same time")
LIMITS = (REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, TOKENS_PER_DAY, MAX_CONCURRENT)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request takes of each limit: itself, and the tokens that it may come to use."""

    prompt_tokens: int  # about: only the head knows
    answer_tokens: int  # at most, of all its choices
    param: str = "max_tokens"  # what names the tokens of an answer in it

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    def of(self, limit: Limit) -> int:
        return 1 if limit.counts == "requests" else self.tokens


@dataclass(frozen=True, slots=True)
class Standing:
    """How much of one limit is used now."""

    limit: Limit
    most: int
    used: int
    resets_s: float  # until nothing counts any more, if nothing more is asked

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)

    def lacks(self, wanted: Wanted) -> int:
        """How much must become free before it has room."""
        return self.used + wanted.of(self.limit) - self.most

    def after(self, wanted: Wanted, resets_s: float) -> Standing:
        return replace(self, used=self.used + wanted.of(self.limit), resets_s=resets_s)


def wait_s(held: Iterable[tuple[float, int]], lacks: int) -> float | None:
    """When enough is free of what is held: pairs of seconds from now and how much is free then, the next first."""
    for frees_in_s, amount in held:
        lacks -= amount
        if lacks <= 0:
            return max(0.0, frees_in_s)
    return None


def check_size(standings: Iterable[Standing], wanted: Wanted) -> None:
    """Raises ApiError 400 for a request that no waiting makes fit."""
    for standing in standings:
        if wanted.of(standing.limit) > standing.most:
            raise _too_large(standing, wanted)


def refusal(standing: Standing, wanted: Wanted, room_in_s: float, standings: Sequence[Standing]) -> ApiError:
    """For a request that fits later. `standings`: all of the key's, for the headers."""
    seconds = max(1, math.ceil(room_in_s))
    are = "is" if standing.used == 1 else "are"
    used = "used" if standing.limit.counts == "requests" else "used or reserved"
    message = (
        f"Rate limit reached: this API key has {standing.limit.of(standing.most)}, {standing.used} of them {are} "
        f"{used}, and this request takes {_in_words(standing.limit, wanted)}. Try again in {seconds} s."
    )
    return ApiError(429, message, code=CODE, headers={"Retry-After": str(seconds)} | headers(standings))


def headers(standings: Iterable[Standing]) -> dict[str, str]:
    """As OpenAI names them. Tokens have one set of headers: of minute and day, the limit with less left."""
    told: dict[str, str] = {}
    for counts in ("requests", "tokens"):
        these = [one for one in standings if one.limit.counts == counts and one.limit is not MAX_CONCURRENT]
        if these:
            least = min(these, key=lambda one: one.left)
            told |= {
                f"x-ratelimit-limit-{counts}": str(least.most),
                f"x-ratelimit-remaining-{counts}": str(least.left),
                f"x-ratelimit-reset-{counts}": _duration(least.resets_s),
            }
    return told


def _too_large(standing: Standing, wanted: Wanted) -> ApiError:
    allowed = f"this API key has {standing.limit.of(standing.most)} in all"
    if standing.limit.counts == "requests":
        return ApiError(400, f"This request can never be answered: {allowed}.", code=ABOVE)
    takes = f"This request takes {_in_words(standing.limit, wanted)}; {allowed}."
    if wanted.prompt_tokens >= standing.most:
        return ApiError(400, f"{takes} Shorten the prompt.", code=ABOVE)
    return ApiError(400, f"{takes} Ask for a shorter answer.", code=ABOVE, param=wanted.param)


def _in_words(limit: Limit, wanted: Wanted) -> str:
    if limit.counts == "requests":
        return "1"
    return (
        f"{wanted.tokens}: about {wanted.prompt_tokens} for its prompt and {wanted.answer_tokens} for its answer "
        f"({wanted.param}, times n)"
    )


def _duration(seconds: float) -> str:
    """ "1h0m5s", "6m0s", "17s": as OpenAI writes them."""
    minutes, left_s = divmod(math.ceil(seconds), 60)
    hours, left_minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{left_minutes}m{left_s}s"
    return f"{minutes}m{left_s}s" if minutes else f"{left_s}s"
