"""Images one after another through a model and into a file: what `classify` and `detect run` have in common."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bayesvlm.cli.answers import AnswerFile, Resumed, Row
from bayesvlm.cli.output import remark
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.image_files import encode_files, still_unreadable
from bayesvlm.images.workers import worker_failures
from bayesvlm.progress import duration, progress_bar

if TYPE_CHECKING:
    from bayesvlm.core.features import Features
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import SkippedImages


_WHOLE = 10  # rows of which nothing is forgotten


@dataclass(frozen=True)
class Answering:
    """Images to be answered, and where the answers go.

    Args:
        doing: what the progress bar says, such as "classifying".
        paths: of all images, in order.
        store: encodes them.
        skipped: what cannot be read.
        answers: the file; None where they are only shown.
        question: what is asked, as json; the same one goes on where it was interrupted.
        shown: how many rows are kept to be shown; None keeps all.
        batch_size: images that go through the model at once.
        forget: what is dropped of all rows but the first ten, where many are kept and written to a file.
    """

    doing: str
    paths: list[Path]
    store: FeatureStore
    skipped: SkippedImages
    answers: AnswerFile | None
    question: Mapping[str, Any]
    shown: int | None
    batch_size: int
    forget: tuple[str, ...] = ()

    def run(self, prepare: Callable[[int], Callable[[list[Path], Features], list[Row]]]) -> Answered:
        """Answer every image that can be read.

        Args:
            prepare: called once, with how many images have an answer already; makes the function that says what there
                is to say of some images.
        """
        answers, paths = self.answers, self.paths
        found = Resumed()
        begun = time.monotonic()
        try:
            with (
                answers.open(self.question) if answers else nullcontext(),
                progress_bar(self.doing, total=len(paths), unit="images") as advance,
                warnings.catch_warnings(),
                worker_failures(),
            ):
                warnings.filterwarnings("ignore", "There is one class only")  # it is said before
                if answers:
                    found = self._resumed(answers)
                already, rows = found.done, self._remembered(0, found.rows)
                advance(already)
                describe = prepare(found.answered)
                for batch in encode_files(self.store, paths, self.skipped, self.batch_size, start=already):
                    if batch.paths:
                        described = describe(batch.paths, batch.features)
                        if answers:
                            answers.add(described)
                        fresh = described if self.shown is None else described[: max(0, self.shown - len(rows))]
                        rows += self._remembered(len(rows), fresh)
                        found.answered += len(described)
                    found.done += batch.seen
                    advance(batch.seen)
                if not found.answered:
                    raise BayesVLMError(f"None of the {len(paths)} image(s) could be read; the reasons are above.")
        except KeyboardInterrupt:
            where = f" and their answers are in {answers.partial}" if answers and found.answered else ""
            again = "give the same command again to go on from there"
            kept = f"{found.done} of {len(paths)} images are done{where}; {again}"
            remark(f"interrupted: {kept if found.done else f'none of the {len(paths)} images was done'}")
            raise typer.Exit(130) from None
        finally:
            if self.skipped.reasons:
                remark(str(self.skipped))
        return Answered(rows, found.answered, found.done - already, already, time.monotonic() - begun)

    def _remembered(self, before: int, rows: list[Row]) -> list[Row]:
        """Rows without what is to be forgotten of them."""
        if not self.forget:
            return rows
        whole = max(0, _WHOLE - before)
        slim = [{name: value for name, value in row.items() if name not in self.forget} for row in rows[whole:]]
        return rows[:whole] + slim

    def _resumed(self, answers: AnswerFile) -> Resumed:
        """What an earlier run has answered, unless one of the images that it could not read can be read now."""
        found = answers.resume(self.paths, self.shown)
        return found if still_unreadable(found.passed, self.store, self.skipped) else answers.restart()


@dataclass(frozen=True)
class Answered:
    """What came of it: rows to show, how many images have an answer, how many were looked at now and before."""

    rows: list[Row]
    answered: int
    done: int
    already: int
    seconds: float

    def pace(self) -> str:
        """How long it took."""
        taken = max(self.seconds, 1e-9)
        before = f", {self.already} of them looked at before" if self.already else ""
        return f"{duration(taken)}, {self.done / taken:,.3g} images per second{before}"


def stamp(*paths: Path) -> str:
    """A hash that changes when one of these files does, or one in these folders: by names, sizes and dates."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            status = file.stat() if file.is_file() else None
            digest.update(
                f"{file}\0{status and (status.st_size, status.st_mtime_ns)}\0".encode(errors="surrogateescape")
            )
    return digest.hexdigest()
