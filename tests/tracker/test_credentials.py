from __future__ import annotations

import pytest

from tracker import credentials
from tracker.credentials import Credential, Kind


@pytest.mark.parametrize("kind", list(Kind))
def test_a_minted_credential_can_be_read_back(kind: Kind) -> None:
    credential = credentials.mint(kind)
    assert credentials.parse(credential.text) == credential
    assert credential.key_id.startswith(f"{kind}_")


def test_no_two_are_alike() -> None:
    assert len({credentials.mint(Kind.API).text for _ in range(100)}) == 100


def test_only_the_right_secret_matches() -> None:
    credential = credentials.mint(Kind.API)
    assert credentials.matches(credential.secret, credential.secret_hash)
    assert not credentials.matches(credential.secret + "x", credential.secret_hash)
    assert not credentials.matches("", credential.secret_hash)


@pytest.mark.parametrize(
    "text",
    ["", ".", "abcd", "abcd.", ".abcdefghijklmnop", "a b.abcdefghijklmnop", "x" * 500, "é.", "ab\0c.d", "\ud83d"],
)
def test_other_texts_are_no_credentials(text: str) -> None:
    assert credentials.parse(text) is None


def test_a_credential_never_shows_its_secret_by_accident() -> None:
    credential = Credential("key_0123", "s3cret-s3cret-s3cret")
    assert "s3cret" not in f"{credential!r} {credential}"


def test_a_wrong_credential_is_described_by_its_kind() -> None:
    assert credentials.describe(credentials.mint(Kind.API).text) == "an API key"
    assert credentials.describe(credentials.mint(Kind.JOIN).text) == "a join token"
    assert credentials.describe("sk-123") == "no credential of this site"
