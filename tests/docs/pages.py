"""What the tests of the documentation read: its pages, their links and their code blocks."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, its text, and the prose right before it."""

    language: str
    text: str
    before: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [Block(m[1], m[2], text[: m.start()].rstrip().split("\n\n")[-1]) for m in found]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", h.lower()) for h in headings]
    return {re.sub(r"[ -]+", "-", h).strip("-") for h in plain}


def commands(page: Path, language: str) -> list[str]:
    """The lines of a page's blocks in one language, comments and empty lines aside."""
    lines = [x for b in blocks(page) if b.language == language for x in b.text.splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("#")]
