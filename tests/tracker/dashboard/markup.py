"""What a browser would make of a page: the tags and attributes that somebody's name brought in, and its text."""

from __future__ import annotations

from html.parser import HTMLParser

# As a name it closes attributes of either quote, opens a tag, and isn't mended by escaping twice.
SPICE = "\"'><x-evil onload=a()>&amp;"


class Read(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.fields: set[str] = set()  # names of what forms send
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("input", "select", "textarea"):
            self.fields.add(dict(attrs).get("name") or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def intruders(page: str) -> set[str]:
    """Of a page with spiced names: what of them became markup."""
    read = Read(page)
    return (read.tags | read.attributes) & {"x-evil", "onload", "onload=a()"}
