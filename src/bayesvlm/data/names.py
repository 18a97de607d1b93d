"""Names of data as people type them: NAME:SPLIT, ids and addresses of the Hub, and where a name is looked for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError

TABLES = "datasets:"
"""Stands before the name of a table that Hugging Face's `datasets` library reads."""
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""OWNER/NAME."""
_TABLE_ID = re.compile(rf"{HUB_ID.pattern}|\w[\w.-]*")  # a few tables of the Hub have no owner

_SPLIT = re.compile(r"(?P<base>.+):(?P<split>[^:/\\\[\]]*(?:\[[^\]]*\])?)")
_HUB_PAGE = re.compile(
    r"(?:hf://|https?://(?:www\.)?(?:huggingface|hf)\.co/)datasets/"
    rf"(?P<repo>{HUB_ID.pattern})(?:/(?:tree/main/?)?)?(?P<split>:.*)?"
)
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]+://|pipe:).*", re.IGNORECASE)
_CLIP_BENCHMARK = re.compile(r"wds/(?P<name>\w[\w.-]*(?:/\w[\w.-]*)*)")


@dataclass(frozen=True)
class DataName:
    """A name, taken apart.

    Attributes:
        given: what was typed.
        base: without the prefix `datasets:`, the address of the Hub's pages, and the split.
        split: what stands after the colon, or was asked for beside it.
        table: whether `datasets:` stands before it.
        page: whether it is an address of the Hub's pages, and so no folder here.
    """

    given: str
    base: str
    split: str | None = None
    table: bool = False
    page: bool = False

    @classmethod
    def parse(cls, name: str | Path, split: str | None = None) -> DataName:
        """Take NAME:SPLIT apart; what lies here under the whole name, a colon in it or not, has no split in its name.

        >>> DataName.parse("imagenet:val").split, DataName.parse("owner/name:train[:1%]").base
        ('val', 'owner/name')
        >>> DataName.parse("https://huggingface.co/datasets/owner/name/tree/main").base
        'owner/name'

        Raises:
            BayesVLMError: where two splits are asked for, or an empty one.
        """
        given = str(name)
        base = given.removeprefix(TABLES)
        table = base != given
        page = _HUB_PAGE.fullmatch(base)
        if page is not None:
            base = page["repo"] + (page["split"] or "")
        found = _SPLIT.fullmatch(base)
        if found is None or _ADDRESS.fullmatch(base) or (page is None and own_path(base).exists()):
            return cls(given, base, split, table, page is not None)
        if not found["split"] or (split is not None and split != found["split"]):
            raise BayesVLMError(
                f"{given!r} was asked for with the split {split!r}; name one split, as in {found['base']}:test."
            )
        return cls(given, found["base"], found["split"], table, page is not None)

    @property
    def hub_id(self) -> str | None:
        """The id on the Hub that it may be; `wds/NAME` is CLIP-benchmark's way to name one of its own."""
        if found := _CLIP_BENCHMARK.fullmatch(self.base):
            return f"clip-benchmark/wds_{found['name'].replace('/', '-')}"
        pattern = _TABLE_ID if self.table else HUB_ID
        return self.base if pattern.fullmatch(self.base) else None

    @property
    def is_address(self) -> bool:
        """Whether it is an address of the web or of a bucket, or a command to read from."""
        return is_address(self.base)

    def local(self, root: Path) -> Path | None:
        """The file or folder of that name: here, or below the folder of the data sets; None where there is none."""
        if not self.base or self.page or self.is_address:
            return None
        own = own_path(self.base)
        places = [own, root / own]
        if _CLIP_BENCHMARK.fullmatch(self.base) and self.hub_id:
            places.append(root / self.hub_id.rpartition("/")[2])
        return next((place for place in places if place.exists()), None)


def data_root(root: str | Path | None) -> Path:
    """Where data sets lie that are known by name: `root`, else $BAYESVLM_DATA, else ./data."""
    return Path(root or os.environ.get("BAYESVLM_DATA") or "data").expanduser()


def is_address(name: str) -> bool:
    """Whether a name is an address of the web or of a bucket, or a command to read from."""
    return _ADDRESS.fullmatch(name) is not None


def own_path(name: str) -> Path:
    """A name as a path, with `~` for the home folder."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody, whom nobody knows
        return Path(name)


ADDRESSED = (
    "{name!r} is an address; only data sets of the Hub are fetched (OWNER/NAME), so download it, and name the folder "
    "or the files."
)
"""What to do with an address."""
