"""One connection to a real Redis: with a password, over TLS, and what it says when it can't go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.leases import Leases
from relay.pubsub import Line, Refused
from tests.lab.processes import free_port
from tests.lab.redis import Redis
from tests.lab.terminator import make_certificates


class Ears:
    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.drained = asyncio.Event()
        self.line = Line(self.heard.put_nowait, self.ended.put_nowait, self.drained.set)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a Redis with a password: plain, and over TLS."""
    folder, port = tmp_path_factory.mktemp("guarded"), free_port()
    make_certificates(folder)
    files = [f"tls-cert-file {folder}/server.pem", f"tls-key-file {folder}/server.key"]
    tls = [f"tls-port {port}", f"tls-ca-cert-file {folder}/ca.pem", "tls-auth-clients no", *files]
    with Redis(folder / "redis", "requirepass s3cret", *tls) as server:
        plain = f"127.0.0.1:{server.port}/0"
        yield f"redis://:s3cret@{plain}", f"rediss://:s3cret@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem"


@pytest.fixture(params=["plain", "tls"])
def url(request: pytest.FixtureRequest, guarded: tuple[str, str]) -> str:
    return guarded[request.param == "tls"]


async def test_what_one_says_without_waiting_the_other_hears_in_order(url: str) -> None:
    a, b = Ears(), Ears()
    async with asyncio.timeout(10):
        await a.line.open(url)
        await b.line.open(url)
        assert await b.line.ask("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        a.line.say("CLIENT", "REPLY", "OFF")
        said = [bytes([number]) * (1 + 2000 * number) for number in range(60)]
        for payload in said:
            a.line.say("PUBLISH", "news", payload)
        assert [await b.heard.get() for _ in said] == said
    a.line.close()
    b.line.close()
    assert a.ended.empty()


async def test_a_redis_that_takes_nothing_fills_the_line_until_it_does(tmp_path: Path) -> None:
    with Redis(tmp_path) as server:
        ears = Ears()
        async with asyncio.timeout(10):
            await ears.line.open(server.url)
            server.freeze()
            for _ in range(3):
                ears.line.say("ECHO", bytes(8 * 1024 * 1024))
            assert ears.line.is_full
            server.thaw()
            await ears.drained.wait()
        assert not ears.line.is_full
        ears.line.close()


async def test_presence_goes_the_same_way(url: str) -> None:
    leases = Leases(url, "p1", "ws://relay.example")
    _, snapshot = await leases.refresh(0)
    assert dict(snapshot.processes) == {"p1": "ws://relay.example"}
    await leases.give_up()
    await leases.close()


async def test_a_wrong_password_is_refused(guarded: tuple[str, str]) -> None:
    ears = Ears()
    async with asyncio.timeout(10):
        with pytest.raises(Refused, match="WRONGPASS"):
            await ears.line.open(guarded[0].replace("s3cret", "other"))
    ears.line.close()


async def test_an_authority_that_is_not_trusted_is_no_connection(guarded: tuple[str, str]) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await Ears().line.open(guarded[1].partition("?")[0])
        blind = Ears()
        await blind.line.open(guarded[1].partition("?")[0] + "?ssl_cert_reqs=none")
        assert await blind.line.ask("PING") == b"PONG"
    blind.line.close()


async def test_an_error_that_nobody_waits_for_ends_it(guarded: tuple[str, str]) -> None:
    ears = Ears()
    async with asyncio.timeout(10):
        await ears.line.open(guarded[0])
        ears.line.say("NONSENSE")
        assert "unknown command" in await ears.ended.get()


@pytest.mark.parametrize("words", [b"HTTP/1.1 200 OK\r\n\r\n", b""])
async def test_what_is_no_redis_ends_it_and_whoever_waits(words: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(words)
        writer.close()

    stranger = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    ears = Ears()
    async with asyncio.timeout(10):
        await ears.line.open(f"redis://127.0.0.1:{stranger.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionResetError):
            await ears.line.ask("PING")
        assert await ears.ended.get()
        stranger.close()
        await stranger.wait_closed()
    assert ears.ended.empty()


async def test_a_message_whose_hearer_fails_ends_the_line_and_not_the_loop(
    guarded: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(payload: bytes) -> None:
        raise KeyError("a mistake of ours")

    ears = Ears()
    line = Line(fail, ears.ended.put_nowait, lambda: None)
    async with asyncio.timeout(10):
        await line.open(guarded[0])
        await line.ask("SUBSCRIBE", "news")
        await ears.line.open(guarded[0])
        await ears.line.ask("PUBLISH", "news", b"x")
        assert await ears.ended.get() == "an error of ours"
    assert "a mistake of ours" in caplog.text
    ears.line.close()
