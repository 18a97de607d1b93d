"""What users get: the three wheels, built from the tracked files and installed in an environment of their own.

`make test-wheel` runs it. The library is installed alone first (`library_alone.py` looks at it), then with its extras
(`all_three.py` does).
"""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MIT = "MIT"
ARTWORK = "MIT AND Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
WHEELS = {  # distribution -> its folder, licence, and the most megabytes its wheel may have
    "bayesvlm": (".", MIT, 1.0),
    "bayesvlm_world": ("world", ARTWORK, 55.0),
    "bayesvlm_paper": ("paper", MIT, 1.0),
}
NOT_SHIPPED = ("tests/", "recipes/", "node_modules/", "benchmarks/", "docs/", "build/", ".pyc")


def main() -> None:
    """Build, look inside, install, look again; ends at the first thing that is wrong."""
    with tempfile.TemporaryDirectory(prefix="bayesvlm-wheels-") as name:
        place = Path(name)
        wheels = build(tracked_copy(place / "tree"), place / "wheels")
        for distribution, wheel in wheels.items():
            inspect(distribution, wheel)
        python = environment(place / "venv")
        constraints = ROOT / "constraints.txt"
        run([*pip(python), "install", "--constraint", constraints, wheels["bayesvlm"]], "install the library alone")
        run([python, "-I", HERE / "library_alone.py"], "look at it", cwd=place)
        extras = ["--no-index", "--find-links", wheels["bayesvlm"].parent, "bayesvlm[world,paper]"]
        run([*pip(python), "install", *extras], "install the extras world and paper")
        run([python, "-I", HERE / "all_three.py"], "look at all three", cwd=place)


def tracked_copy(folder: Path) -> Path:
    """What git would hand over, as it is now: no earlier build can slip into a wheel."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(tree: Path, folder: Path) -> dict[str, Path]:
    """The wheels by distribution."""
    sources = [tree / source for source, _, _ in WHEELS.values()]
    run([*pip(Path(sys.executable)), "wheel", "--no-deps", "--wheel-dir", folder, *sources], "build three wheels")
    built = {wheel.name.split("-")[0]: wheel for wheel in folder.glob("*.whl")}
    assert built.keys() == WHEELS.keys(), f"built {sorted(built)}"
    return built


def inspect(distribution: str, wheel: Path) -> None:
    """Size, licence, and that it holds its package and nothing else."""
    _, licence, limit = WHEELS[distribution]
    megabytes = wheel.stat().st_size / 1e6
    print(f"  {wheel.name}: {megabytes:.2f} MB", flush=True)
    assert megabytes < limit, f"{wheel.name} has {megabytes:.2f} MB; at most {limit} are wanted"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (described,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(described))
    assert {name.split("/")[0].split("-")[0] for name in names} == {distribution}, "one package, nothing beside it"
    strays = [name for name in names if any(part in name for part in NOT_SHIPPED)]
    assert not strays, f"{wheel.name} holds {strays[:5]}"
    assert f"{distribution}/py.typed" in names, f"{wheel.name} has no py.typed"
    assert metadata["License-Expression"] == licence, metadata["License-Expression"]
    licences = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    artwork = {"LICENSES.md", "LICENSE-Apache-2.0.txt"} if licence == ARTWORK else set()
    assert licences == {"LICENSE"} | artwork, f"{wheel.name} has the licences {sorted(licences)}"


def environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment."""
    run([sys.executable, "-m", "venv", folder], "make a virtual environment")
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def pip(python: Path) -> list[str | Path]:
    return [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def run(command: list[str | Path], what: str, cwd: Path | None = None) -> None:
    """Run a step and say how long it took; nothing of this tree is on its path."""
    started = time.perf_counter()
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if subprocess.run(command, cwd=cwd, env=clean, check=False).returncode:
        sys.exit(f"WRONG: {what}")
    print(f"{what}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
