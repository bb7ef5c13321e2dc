"""References within a schema: each must lead to a schema of the same document, and not back to itself.

They may lead only to what has been looked at as a schema: what stands in a constant or a note has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from nodes.keywords import SchemaError

Path = tuple[str | int, ...]  # of a schema within its document: keywords, names and numbers
_JOINED = ("allOf", "anyOf", "oneOf")  # whose schemas are of the same value


def place_of(path: Path) -> str:
    """As messages name it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def check_references(references: Mapping[Path, str]) -> None:
    """`references`: of each schema of the document the one that it refers to, or "". Raises SchemaError."""
    paths = {tuple(map(str, path)): path for path in references}
    targets: dict[Path, Path] = {}
    for path, reference in references.items():
        if reference:
            place = place_of((*path, "$ref"))
            if not reference.startswith("#"):
                raise SchemaError('leads out of the schema: only "#" and "#/..." can be followed', place)
            parts = _parts(reference)
            target = None if parts is None else paths.get(parts)
            if target is None:
                raise SchemaError("leads nowhere: there is no such schema in this one", place)
            targets[path] = target
    _check_rings(targets, references)


def _parts(reference: str) -> tuple[str, ...] | None:
    if reference == "#":
        return ()
    if not reference.startswith("#/"):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in unquote(reference[2:]).split("/"))


def _check_rings(targets: Mapping[Path, Path], paths: Mapping[Path, str]) -> None:
    """Of schemas that are of the same value, by reference or as one's choices: none may come back to itself."""
    choices: dict[Path, list[Path]] = {}
    for path in paths:
        if len(path) > 1 and path[-2] in _JOINED and isinstance(path[-1], int):
            choices.setdefault(path[:-2], []).append(path)
    done: set[Path] = set()
    for start in targets:
        trail: list[tuple[Path, Iterator[Path]]] = [(start, _next(start, targets, choices))]
        on_trail = {start}
        while trail:
            path, after = trail[-1]
            following = next(after, None)
            if following is None:
                on_trail.discard(path)
                done.add(path)
                trail.pop()
            elif following in on_trail:
                raise SchemaError("leads back to itself, so it says nothing", place_of((*start, "$ref")))
            elif following not in done:
                trail.append((following, _next(following, targets, choices)))
                on_trail.add(following)


def _next(path: Path, targets: Mapping[Path, Path], choices: Mapping[Path, list[Path]]) -> Iterator[Path]:
    if path in targets:
        yield targets[path]
    yield from choices.get(path, ())
