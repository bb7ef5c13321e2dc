"""What Meshnet is measured against: transformers' `generate` with the whole model, in a process of its own.

The process is forked from the warm interpreter, loads the model once for each dtype, and runs a round when it is told
to by a pipe, so that its rounds and the mesh's take turns on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from relay.pages import use_huge_pages
from tests.lab.warm import SERVER

DEADLINE_S = 120.0
BANDWIDTH_TRIES = 3


class Generate:
    """The process. A context."""

    def __init__(self, model: Path, dtypes: Sequence[str]) -> None:
        self._connection, theirs = SERVER.Pipe()
        self._process = SERVER.Process(target=_serve, args=(theirs, str(model), list(dtypes)), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Generate:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()  # which ends it
        self._process.join(10)
        self._process.kill()

    def decode(self, dtype: str, prompt_ids: list[int], num_tokens: int, num_sequences: int = 1) -> list[float]:
        """When each step's tokens came, as seconds since the first."""
        return list(self._call("decode", dtype, prompt_ids, num_tokens, num_sequences))

    def ids(self, dtype: str, prompt_ids: list[int], num_tokens: int) -> list[int]:
        return list(self._call("ids", dtype, prompt_ids, num_tokens))

    def prefill_s(self, dtype: str, prompt_ids: list[int]) -> float:
        """From the prompt to the first token."""
        return float(self._call("prefill_s", dtype, prompt_ids))

    def stream_ms(self, num_bytes: int) -> float:
        """How long the processor takes to read so many bytes of weights once, at its best."""
        return float(self._call("stream_ms", num_bytes))

    def _call(self, *message: Any) -> Any:
        self._connection.send(message)
        assert self._connection.poll(DEADLINE_S), f"generate didn't answer in {DEADLINE_S:.0f} s: {message[0]}"
        return self._connection.recv()


def _serve(connection: Connection, model: str, dtypes: Sequence[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    whole = {
        dtype: AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), local_files_only=True).eval()  # type: ignore[no-untyped-call]
        for dtype in dtypes
    }
    rounds = _Rounds(whole)
    try:
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(rounds, name)(*arguments))
    except EOFError:
        return


class _Clock:
    """What `generate` calls a streamer: it is given each step's tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class _Rounds:
    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole

    def decode(self, dtype: str, prompt_ids: list[int], num_tokens: int, num_sequences: int) -> list[float]:
        times = self._generate(dtype, prompt_ids, num_tokens, num_sequences)[1]
        return [moment - times[0] for moment in times]

    def ids(self, dtype: str, prompt_ids: list[int], num_tokens: int) -> list[int]:
        return list(self._generate(dtype, prompt_ids, num_tokens, 1)[0])

    def prefill_s(self, dtype: str, prompt_ids: list[int]) -> float:
        started = time.perf_counter()
        self._generate(dtype, prompt_ids, 1, 1)
        return time.perf_counter() - started

    def stream_ms(self, num_bytes: int) -> float:
        """A matrix of so many bytes times a vector, in float32: nothing is reused, so that reading is all there is."""
        import torch

        width = 1024
        matrix, vector = torch.ones(max(1, num_bytes // (4 * width)), width), torch.ones(width)
        use_huge_pages()  # nothing is generated any more: its own weights lie as transformers has put them
        took = []
        for _ in range(BANDWIDTH_TRIES + 1):
            started = time.perf_counter()
            torch.mv(matrix, vector)
            took.append((time.perf_counter() - started) * 1000)
        return min(took[1:])

    def _generate(
        self, dtype: str, prompt_ids: list[int], num_tokens: int, num_sequences: int
    ) -> tuple[list[int], list[float]]:
        import torch

        clock = _Clock()
        inputs = torch.tensor([prompt_ids] * num_sequences)
        with torch.inference_mode():
            output = self._whole[dtype].generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                streamer=clock,
            )
        return output[0, len(prompt_ids) :].tolist(), clock.times[1:]  # the first is the prompt's
