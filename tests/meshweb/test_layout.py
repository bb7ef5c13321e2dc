"""Who may import whom: the arrows of ARCHITECTURE.md, read from the code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"meshweb", "relay", "tracker", "nodes", "tests", "bench"}
# Standard library only, for nodes too.
SHARED = {f"relay.{name}" for name in ("wire", "codec", "checked", "envelope", "headers", "served", "pages")}
ALLOWED = {
    "meshweb": {"tracker", "relay"},
    "tracker": {*SHARED, "relay.client", "relay.presence", "relay.prometheus", "relay.report", "relay.auth"},
    "relay": set(),
    "nodes": SHARED,
}
NEVER_ON_THE_SERVER = {"torch", "transformers", "safetensors", "gguf", "numpy", "llguidance"}
NEVER_ON_A_NODE = {"channels", "daphne", "pydantic"}


def modules(package: str) -> list[Path]:
    return sorted(path for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of what a module imports; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_allowed(name: str, package: str) -> bool:
    targets = ALLOWED[package] | {package}
    return any(name == target or name.startswith(target + ".") for target in targets)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_its_arrows_allow(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if name.split(".")[0] in OURS and not is_allowed(name, package)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", sorted(SHARED))
def test_what_nodes_and_server_share_needs_the_standard_library_only(module: str) -> None:
    path = ROOT / (module.replace(".", "/") + ".py")
    roots = {name.split(".")[0] for name in imports(path) if not is_allowed(name, "nodes")}
    assert roots <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("tracker", NEVER_ON_THE_SERVER),
        ("relay", NEVER_ON_THE_SERVER),
        ("meshweb", NEVER_ON_THE_SERVER),
        ("nodes", NEVER_ON_A_NODE),
    ],
)
def test_a_side_never_imports_what_only_the_other_has(package: str, never: set[str]) -> None:
    found = {name.split(".")[0] for path in modules(package) for name in imports(path)}
    assert found & never == set()


def test_only_settings_read_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for package in ALLOWED
        for path in modules(package)
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    ]
    assert set(readers) <= {
        "meshweb/env.py",
        "meshweb/asgi.py",  # names the settings
        "tracker/demo.py",  # starts children
        "nodes/modules/packed.py",  # switches transformers' reading ahead off, which nothing else does
    }


def test_every_variable_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    names = {
        str(node.args[0].value)
        for name in ("settings.py", "node_settings.py")
        for node in ast.walk(ast.parse((ROOT / "meshweb" / name).read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "env"
        and isinstance(node.args[0], ast.Constant)
    }
    assert names
    assert {name for name in names if f"`{name}`" not in readme} == set()
