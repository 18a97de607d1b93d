"""Names for classes, apart from what the data call them: a list, or a table from what the data say to the name.

names.txt       one name per line, in the order of the sorted class folders; of labels that are numbers, from 0 on
names.csv       a header folder,name (or label,name) and a row per class; a single column is a list
LOC_synset_mapping.txt, classnames.txt      ImageNet's lines "n01440764 tench, ..."

In the first two a bar separates synonyms, "couch|sofa": the first is shown, a model is asked for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import spaced
from bayesvlm.data.labelled.naming import names_synsets, read_synsets
from bayesvlm.data.rows import choose_column, csv_rows, find_column, read_text

TABLES = (".csv", ".tsv")
ID_COLUMNS = ("folder", "label", "class", "id")
NAME_COLUMNS = ("name", "names", "class_name")

Names = tuple[str, ...]
"""Of one class: the one that is shown, then its synonyms."""

GivenNames = str | Path | Sequence[str] | Sequence[Sequence[str]] | Mapping[str, str] | Mapping[str, Sequence[str]]
"""A file of names, or what it says: a list, or a mapping from what the data say."""


@dataclass(frozen=True)
class ClassNames:
    """Names for classes.

    Attributes:
        source: what errors call it.
        names: of each class.
        ids: what the data call each class; None where the names are a list.
    """

    source: str
    names: tuple[Names, ...]
    ids: tuple[str, ...] | None = None

    @classmethod
    def of(cls, given: ClassNames | GivenNames) -> ClassNames:
        """Read a file, or take what it would say.

        >>> ClassNames.of(["couch|sofa", "bed"]).names
        (('couch', 'sofa'), ('bed',))

        Raises:
            BayesVLMError: where a file cannot be read, or a name stands for two classes.
        """
        if isinstance(given, ClassNames):
            return given
        if isinstance(given, str | Path):
            return cls._read(Path(given).expanduser())
        if isinstance(given, Mapping):
            return cls("classes", tuple(map(_names, given.values())), tuple(map(str, given)))._checked()
        if isinstance(given, bytes | set | frozenset) or not isinstance(given, Iterable):
            raise BayesVLMError(
                f"classes={str(given)[:60]}, a {type(given).__name__}; it must be a file, a list of names, or a "
                "mapping from what the data say to the name."
            )
        return cls("classes", tuple(map(_names, given)))._checked()

    @classmethod
    def _read(cls, file: Path) -> ClassNames:
        lines = [line.strip() for line in read_text(file).split("\n") if line.strip()]
        if file.suffix.lower() in TABLES and (rows := csv_rows(file, "names")):
            if len(rows[0]) > 1:
                return cls._read_table(file, rows)
            (head,) = rows[0]
            cells = [] if find_column([head], NAME_COLUMNS) is not None else [head]
            lines = [cell.strip() for cell in [*cells, *(row[head] for row in rows)] if cell and cell.strip()]
        if lines and names_synsets(file):
            synsets = read_synsets(file)  # two of ImageNet's classes may have one name
            return cls(str(file), tuple((name,) for name in synsets.values()), tuple(synsets))
        return cls(str(file), tuple(map(_names, lines)))._checked()

    @classmethod
    def _read_table(cls, file: Path, rows: Sequence[Mapping[str, str]]) -> ClassNames:
        columns = list(rows[0])
        identity = choose_column(columns, None, ID_COLUMNS, file)
        name = choose_column([column for column in columns if column != identity], None, NAME_COLUMNS, file)
        ids, names = [], []
        for number, row in enumerate(rows, start=1):
            written, said = (row[identity] or "").strip(), _names(row[name] or "")
            if not written and not said:
                continue
            if not written or not said:
                empty = name if written else identity
                raise BayesVLMError(f"{file}, entry {number}: the column {empty!r} is empty; each class needs both.")
            ids.append(written)
            names.append(said)
        if twice := _twice(ids):
            raise BayesVLMError(f"{file} has two rows for {twice!r}; remove one.")
        return cls(str(file), tuple(names), tuple(ids))._checked()

    def _checked(self) -> ClassNames:
        if not self.names:
            raise BayesVLMError(f"{self.source} names no class; expected one name per line, such as cat.")
        if not all(self.names):
            raise BayesVLMError(f"{self.source}: class {self.names.index(()) + 1} has no name; give each class one.")
        if twice := _twice([name for names in self.names for name in names]):
            raise BayesVLMError(f"{self.source} has the name {twice!r} twice; a name is of one class.")
        return self

    def for_classes(self, ids: Sequence[str], shown: Sequence[str], data: str) -> tuple[Names, ...]:
        """The names of the classes that a set has, in its order.

        Args:
            ids: what the set calls each, such as its folder.
            shown: the name that each would have without this.
            data: what errors call the set.
        """
        known = self._known()
        found = [known.get(name, known.get(other)) for name, other in zip(ids, shown, strict=True)]
        missing = next((name for name, place in zip(ids, found, strict=True) if place is None), None)
        if self.ids is not None:
            if missing is not None:
                raise BayesVLMError(f"{self.source} has no name for {missing!r}, a class of {data}; add the row.")
            return tuple(self.names[place] for place in found if place is not None)
        if len(ids) != len(self.names):
            raise BayesVLMError(
                f"{self.source} has {len(self.names)} names, and {data} has {len(ids)} classes ({_first(ids)}); give "
                "one per line in this order, or a csv with the columns folder,name."
            )
        if missing is None:
            return tuple(self.names[place] for place in found if place is not None)
        if meant := next((name for name, place in zip(ids, found, strict=True) if place is not None), None):
            raise BayesVLMError(
                f"{self.source} names {meant!r}, a class of {data}, and does not name {missing!r}, another; spell all "
                "of them alike, or give a csv with the columns folder,name."
            )
        return tuple(self.names[place] for place in _ranks(ids))

    def for_labels(self, labels: Sequence[str], data: str) -> tuple[int, ...]:
        """Of each label of a table, which of these classes it is; they may be more than the table has.

        A label is what a row of a csv begins with, or a name, or a number that counts the names from 0 on. No order is
        guessed: of other labels, as many as there are names, nothing says which is which.

        Args:
            labels: those there are, sorted.
            data: what errors call the table.
        """
        known = self._known()
        unknown = [label for label in labels if label not in known]
        count = len(self.names)
        if not unknown:
            return tuple(known[label] for label in labels)
        if self.ids is None and all(label.isdecimal() for label in labels) and not any(map(str.isdecimal, known)):
            if (last := max(map(int, labels))) >= count:
                raise BayesVLMError(
                    f"{data} has the label {last}, and {self.source} has {count} names, which are numbered from 0 "
                    f"to {count - 1}; give it all names, or a csv with the columns label,name."
                )
            return tuple(map(int, labels))
        how = "or spell them alike" if self.ids else "spell them alike, or give a csv with the columns label,name"
        raise BayesVLMError(
            f"{data} has the label {unknown[0]!r}, which is not among the {count} classes of {self.source} "
            f"({_first(self.ids or [names[0] for names in self.names])}); add it, {how}."
        )

    def places(self, labels: Sequence[str], data: str) -> list[int]:
        """Of each label which class it is, as `for_labels` has it, and by the names where a table has ids, too.

        A label may have underscores for spaces, as folders do. Labels of one set are all ids, or all names.
        """
        distinct = sorted(set(labels))
        own, by_name = self._spelt(distinct), replace(self, ids=None)
        asked = self if set(own) <= self._known().keys() else by_name
        if not set(spelt := asked._spelt(distinct)) <= asked._known().keys():
            asked, spelt = self, own  # numbers, or refused
        found = dict(zip(distinct, asked.for_labels(spelt, data), strict=True))
        return [found[label] for label in labels]

    def _spelt(self, labels: Sequence[str]) -> list[str]:
        """Labels, with spaces for underscores where that is what is known."""
        known = self._known()
        return [spaced(label) if label not in known and spaced(label) in known else label for label in labels]

    def _known(self) -> dict[str, int]:
        """Place of every class, by what the data call it; in a list by its names."""
        if self.ids is not None:
            return {name: place for place, name in enumerate(self.ids)}
        return {name: place for place, names in enumerate(self.names) for name in names}


def _names(written: str | Sequence[str]) -> Names:
    names = written.split("|") if isinstance(written, str) else written
    if not isinstance(names, Iterable) or isinstance(names, bytes) or not all(isinstance(name, str) for name in names):
        raise BayesVLMError(
            f"classes has {str(written)[:60]!r}, a {type(written).__name__}; a class is a name, or a list of names: "
            "its synonyms. Write numbers as text."
        )
    return tuple(name.strip() for name in names if name.strip())


def _ranks(ids: Sequence[str]) -> list[int]:
    """Where each class stands among all, which are sorted: by number where all are numbers, 2 before 10."""
    if not all(name.isdecimal() for name in ids):
        return list(range(len(ids)))
    ranks = {name: rank for rank, name in enumerate(sorted(ids, key=int))}
    return [ranks[name] for name in ids]


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
