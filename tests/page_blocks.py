"""The blocks of code on a page, and the remarks above them that say what a test does with each.

<!-- not run: REASON -->            above a block: none of it is run
<!-- not run (A, B C): REASON -->   none of its lines that begin with A, B C or `bayesvlm A`; the rest is
<!-- run by tests/FILE.py -->       another test runs it, which reads the page
<!-- before: STATEMENT -->          Python that is run first, which readers need not see
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$", re.DOTALL | re.MULTILINE
)
REMARK = re.compile(r"<!-- (not run|run by|before)(?: \(([^)]*)\))?:? (.*?) ?-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        page: the path of the page in the repository.
        line: of the page, where its code begins.
        language: "python", "bash", ...
        text: the code.
        reason: why it is not run; None if it is.
        skipped: what the lines begin with that are not run; the others are.
        elsewhere: the test that runs it.
        before: Python to run first.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    skipped: frozenset[str] = frozenset()
    elsewhere: str | None = None
    before: tuple[str, ...] = field(default=())

    def commands(self) -> Iterator[str]:
        """Lines of a shell, those that end in a backslash with the next."""
        for line in re.sub(r" *\\\n *", " ", self.text).splitlines():
            if line.strip():
                yield line.strip()

    def leaves_out(self, command: str) -> bool:
        """Whether a line is among those that are not run."""
        words = command.removeprefix("bayesvlm ")
        return bool(self.reason) and (not self.skipped or words.startswith(tuple(self.skipped)))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def remarks_above(text: str) -> list[tuple[str, str, str]]:
    """The remarks that end a text: kind, words in brackets, rest; the nearest last."""
    found: list[tuple[str, str, str]] = []
    while match := re.search(r"<!--(?:(?!-->).)*-->\s*\Z", text, re.DOTALL):
        if one := REMARK.match(match.group()):
            found.insert(0, (one.group(1), one.group(2) or "", " ".join(one.group(3).split())))
        text = text[: match.start()]
    return found


def blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page, in order.

    >>> [block] = blocks("p.md", "<!-- not run (pip): why -->\\n```bash\\npip install x\\nbayesvlm info y\\n```\\n")
    >>> block.line, block.reason, [block.leaves_out(line) for line in block.commands()]
    (3, 'why', [True, False])
    """
    for match in FENCE.finditer(text):
        remarks = remarks_above(text[: match.start()])
        told = {kind: (words, rest) for kind, words, rest in remarks}
        words, reason = told.get("not run", ("", None))
        yield Block(
            page,
            text[: match.start("text")].count("\n") + 1,
            match["language"],
            textwrap.dedent(match["text"]),
            reason,
            frozenset(word.strip() for word in words.split(",") if word),
            told.get("run by", ("", None))[1],
            tuple(rest for kind, _, rest in remarks if kind == "before"),
        )


def blocks_of(root: Path, page: str) -> list[Block]:
    """The blocks of a page of the repository."""
    return list(blocks(page, (root / page).read_text(encoding="utf-8")))
