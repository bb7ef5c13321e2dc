"""What a hub is asked, with which credentials, and what its refusals mean in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from nodes.hub.answers import TryAgain
from nodes.hub.client import Hub
from nodes.hub.listing import HubId
from nodes.layout import ModelError
from tests.lab.hub import LocalHub
from tests.lab.terminator import make_certificates
from tests.nodes.certificates import tls_pair

NAME = "acme/tiny"
TOKEN = "hf_secret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    (made / "model.safetensors").write_bytes(bytes(1000))
    (made / "config.json").write_text("{}")
    return made


@pytest.fixture
def local(folder: Path) -> Iterator[LocalHub]:
    with LocalHub({NAME: folder}) as hub:
        yield hub


def first_bytes(hub: Hub, model: HubId) -> bytes:
    with hub.open(hub.list(model), "model.safetensors", 0, 10) as part:
        return b"".join(part.chunks)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("acme/tiny", HubId("acme/tiny", "main")),
        ("Qwen/Qwen2.5-0.5B@v1.0", HubId("Qwen/Qwen2.5-0.5B", "v1.0")),
        ("acme/tiny@refs/pr/1", HubId("acme/tiny", "refs/pr/1")),
        *(
            (text, None)
            for text in ("tiny", "./tiny", "/a/b", "~/b", "a/b/c", "a/..", "a/b@", "a/b@/x", "", "a--b/c", "a/b.gguf")
        ),
    ],
)
def test_an_id_is_an_owner_a_name_and_perhaps_a_revision(text: str, read: HubId | None) -> None:
    assert HubId.read(text) == read


def test_the_token_goes_to_the_hub_and_nowhere_else(local: LocalHub) -> None:
    local.token = TOKEN
    assert first_bytes(Hub(local.url, TOKEN), HubId(NAME)) == bytes(10)
    seen = [(asked.is_cdn, asked.headers.get("authorization")) for asked in local.asked]
    assert seen == [(False, f"Bearer {TOKEN}"), (False, f"Bearer {TOKEN}"), (True, None)]


def test_nobody_is_told_what_else_runs_here(local: LocalHub) -> None:
    first_bytes(Hub(local.url), HubId(NAME))
    assert {asked.headers["user-agent"].split("/")[0] for asked in local.asked} == {"meshnet; hf_hub"}
    assert "authorization" not in local.asked[0].headers


@pytest.mark.parametrize(("revision", "words"), [("nowhere", "has no branch, tag or commit nowhere")])
def test_a_revision_that_isnt_there_is_named(local: LocalHub, revision: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Hub(local.url).list(HubId(NAME, revision))


def test_a_model_that_isnt_shown_may_need_a_token(local: LocalHub) -> None:
    with pytest.raises(ModelError, match=r"shows no model acme/other: check the name; a private or gated model needs"):
        Hub(local.url).list(HubId("acme/other"))


def test_a_gated_model_says_where_to_accept_its_terms(local: LocalHub) -> None:
    local.faults.gated = True
    with pytest.raises(ModelError, match=rf"gated: accept its terms at {local.url}/acme/tiny, and set HF_TOKEN"):
        Hub(local.url).list(HubId(NAME))


@pytest.mark.parametrize("endpoint", ["", "huggingface.co", "ftp://hub", "http://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ModelError, match="is no address of a hub"):
        Hub(endpoint).list(HubId(NAME))


def test_a_wish_to_wait_is_heard(local: LocalHub) -> None:
    local.faults.statuses = [429]
    local.retry_after = "7"
    with pytest.raises(TryAgain) as caught:
        Hub(local.url).list(HubId(NAME))
    assert caught.value.after_s == 7


def test_the_environment_says_which_hub_and_who_asks(monkeypatch: pytest.MonkeyPatch, local: LocalHub) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", local.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    local.token = TOKEN
    assert Hub.of_environment().list(HubId(NAME)).commit == local.commit(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        Hub.of_environment().list(HubId(NAME))


def test_over_tls_only_a_hub_that_is_trusted_is_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = tls_pair(tmp_path / "theirs")
    close_session()  # huggingface_hub's, which read the environment when it was made
    with LocalHub({NAME: folder}, server) as local:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "theirs" / "ca.pem"))
        assert first_bytes(Hub(local.url, TOKEN), HubId(NAME)) == bytes(10)
        close_session()
        (tmp_path / "others").mkdir()
        make_certificates(tmp_path / "others")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "others" / "ca.pem"))
        with pytest.raises(ModelError, match=r"can't be trusted.*SSL_CERT_FILE"):
            Hub(local.url, TOKEN).list(HubId(NAME))
    close_session()
