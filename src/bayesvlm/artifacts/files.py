"""Files that are either whole or absent: atomic writes, and safetensors reads that explain what is wrong."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """All files written and synced under temporary names first, then renamed: no reader sees half a file."""
    waiting: list[tuple[Path, Path]] = []
    try:
        for name, content in files.items():
            temporary = folder / f".{name}.{secrets.token_hex(8)}"
            waiting.append((temporary, folder / name))
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        while waiting:
            temporary, final = waiting[0]
            os.replace(temporary, final)
            waiting.pop(0)
    finally:
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; anything else, or a damaged one, is one clear sentence."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except FileNotFoundError:
        raise BayesVLMError(f"{path} does not exist; a saved posterior needs it, copy the whole folder.") from None
    except OSError as error:
        raise BayesVLMError(f"{path} cannot be read: {error.strerror}.") from None
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
