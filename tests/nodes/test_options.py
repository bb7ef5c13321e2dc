from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodes.options import NodeOptions, UsageError, read_options, read_size
from nodes.state import default_folder
from relay.wire import WIRE_VERSIONS

LEFT_OUT = dict.fromkeys(["join_token", "join_token_file", "listen", "name", "state_dir", "threads", "ca_file"], None)


def read(**given: Any) -> NodeOptions:
    base = {"tracker": "http://127.0.0.1:8000/", "model": "tiny", "layers": "0:2", "dtype": "bfloat16"}
    flags = {"relay_only": False, "no_relay": False, "prefer": "relay", "weights": "dense"}
    flags |= {"executor": "auto", "max_kv_tokens": None, "tokenizer": None, "drafts": "8"}
    flags |= {"public_url": None, "patience": 10.0, "keep_activations": 256, "max_memory": None}
    wire_versions = given.pop("wire_versions", ())
    return read_options({**LEFT_OUT, **base, **flags, **given}, "from-settings", "ca-from-settings", wire_versions)


def test_a_short_command_line_is_enough() -> None:
    options = read(name="my node")

    assert options.tracker_url == "http://127.0.0.1:8000"
    assert (options.start_layer, options.end_layer) == (0, 2)
    assert (options.listen, options.uses_relay) == (None, True)
    assert options.state_folder == default_folder("http://127.0.0.1:8000", "my node")
    assert options.join_token == "from-settings"
    assert options.ca_file == "ca-from-settings"
    assert options.num_threads >= 1


def test_a_node_has_a_name_also_when_none_is_given() -> None:
    assert read().name


def test_the_join_token_may_come_from_three_places(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")

    assert read(join_token="given", join_token_file=str(file)).join_token == "given"
    assert read(join_token_file=str(file)).join_token == "from-file"
    assert read().join_token == "from-settings"


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    options = read(listen="[::1]:7002", no_relay=True, state_dir=str(tmp_path), threads=3, ca_file="mine.pem")

    assert (options.listen, options.uses_relay) == (("::1", 7002), False)
    assert (options.state_folder, options.num_threads, options.ca_file) == (tmp_path, 3, "mine.pem")


def test_a_public_url_stands_for_the_address_it_listens_on() -> None:
    assert read(listen="0.0.0.0:7002", public_url="http://203.0.113.7:80/").public_url == "http://203.0.113.7:80"


@pytest.mark.parametrize("text", ["", "203.0.113.7:7002", "https://a.example", "http://", "http://a:0", "http://a/b"])
def test_a_public_url_is_an_http_address_and_no_more(text: str) -> None:
    with pytest.raises(UsageError, match="--public-url"):
        read(listen="0.0.0.0:7002", public_url=text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("public_url", "http://203.0.113.7:7002"),
        ("patience", 0.0),
        ("patience", 601.0),
        ("keep_activations", -1),
        ("tracker", "mesh.example.org"),
        ("tracker", "ftp://mesh.example.org"),
        ("tracker", "http://"),
        ("tracker", "http://host:port"),
        ("layers", "automatic"),
        ("layers", "3"),
        ("layers", "2:2"),
        ("layers", "3:1"),
        ("layers", "-1:2"),
        ("listen", "7002"),
        ("listen", "host:"),
        ("listen", "host:99999"),
        ("listen", "::1:7002"),
        ("name", "-x"),
        ("name", "a/b"),
        ("name", "a" * 65),
        ("max_memory", "6 apples"),
        ("max_memory", "0"),
        ("max_memory", "10M"),
        ("threads", 0),
        ("threads", -2),
        ("drafts", "0"),
        ("drafts", "33"),
        ("drafts", "many"),
        ("join_token_file", "/nowhere/token"),
    ],
)
def test_a_wrong_argument_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match="--" + name.replace("_", "-")):
        read(**{name: value})


def test_a_node_that_nobody_could_reach_is_refused() -> None:
    with pytest.raises(UsageError, match="--no-relay needs --listen"):
        read(no_relay=True)


def test_it_speaks_every_version_of_the_wire_unless_a_setting_names_some() -> None:
    assert read().wire_versions == WIRE_VERSIONS
    assert read(wire_versions=["1"]).wire_versions == (1,)
    with pytest.raises(UsageError, match="MESHNET_WIRE_VERSIONS '1,9': this node speaks 1"):
        read(wire_versions=["1", "9"])


def test_the_path_it_prefers_is_kept() -> None:
    assert read(prefer="fastest").prefer == "fastest"


def test_drafts_are_on_unless_they_are_turned_off() -> None:
    assert read().max_drafts == 8
    assert read(drafts="3").max_drafts == 3
    assert read(drafts="off").max_drafts == 0


@pytest.mark.parametrize("text", ["", "/nowhere", "org/name"])
def test_a_tokenizer_is_a_folder(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tokenizer .*: no such folder"):
        read(tokenizer=text)


def test_the_choice_of_layers_may_be_left_to_the_site() -> None:
    assert read(layers="auto").picks_layers
    assert not read().picks_layers


@pytest.mark.parametrize(
    ("text", "size"), [("6G", 6 << 30), ("1.5 GiB", 3 << 29), ("800m", 800 << 20), ("800MB", 800 << 20), ("9", 9)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert read_size(text) == size


def test_memory_is_what_its_owner_gives() -> None:
    assert read(max_memory="6G").max_memory_bytes == 6 << 30
    assert read().max_memory_bytes is None
