"""Files that are either whole or absent: atomic writes, and safetensors reads that explain what is wrong."""

from __future__ import annotations

import glob
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """All files written and synced under temporary names first, then renamed: no reader sees half a file.

    The folder is made if need be. A disk that is full or may not be written leaves what was there as it was.
    """
    waiting: list[tuple[Path, Path]] = []
    final = folder / next(iter(files))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            temporary, final = folder / f".{name}.{secrets.token_hex(8)}", folder / name
            waiting.append((temporary, final))
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        while waiting:
            temporary, final = waiting[0]
            os.replace(temporary, final)
            waiting.pop(0)
    except OSError as error:
        raise BayesVLMError(f"{final} cannot be written: {_reason(error)}; make room, or name another place.") from None
    finally:
        for temporary, _ in waiting:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what a process that was killed while it wrote these files left of them under temporary names."""
    for name in names:
        for path in folder.glob(f".{glob.escape(name)}.*"):
            if re.fullmatch(r"[0-9a-f]{16}", path.name.rpartition(".")[2]):
                with suppress(OSError):
                    path.unlink()


def check_writable(folder: str | Path, what: str = "Results") -> Path:
    """Refuse a folder that no file can be written to, before the work whose results are to lie there; makes nothing."""
    folder = Path(folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not existing.is_dir():
        raise BayesVLMError(f"{what} cannot be saved to {folder}: {existing} is a file; name another folder.")
    try:
        with tempfile.TemporaryFile(dir=existing) as file:  # asking for permission says yes to root on a read-only disk
            file.write(b"0")
            file.flush()
    except OSError as error:
        raise BayesVLMError(
            f"{what} cannot be saved to {folder}: {existing} cannot be written to ({_reason(error)}); name another "
            "folder."
        ) from None
    return folder


def check_new_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or that is there already and would be replaced."""
    if path.is_dir():
        raise BayesVLMError(f"{path} is a folder; name a file to write the results to.")
    check_writable(path.parent)
    if path.exists() and not overwrite:
        raise BayesVLMError(f"{path} is there already; name another file with --out, or replace it with --overwrite.")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; anything else, or a damaged one, is one clear sentence."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except FileNotFoundError:
        raise BayesVLMError(f"{path} does not exist; a saved posterior needs it, copy the whole folder.") from None
    except OSError as error:
        raise BayesVLMError(f"{path} cannot be read: {error.strerror}; check that it is a file you may read.") from None
    # A safetensors file begins with the length of its head, whose first byte may be anything, and then a brace.
    if head[:4] == b"PK\x03\x04" or (head[:1] == b"\x80" and head[8:] != b"{"):
        raise BayesVLMError(
            f"{path} is a pickle (torch.save), not safetensors; unpickling can run code, so it is never loaded. "
            "Published Hessian folders are imported with `bayesvlm convert`."
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, ValueError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BayesVLMError(f"{path} is not a readable safetensors file ({reason}); copy or make it again.") from None
