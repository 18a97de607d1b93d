"""Factors from a cluster are those of one process, whatever dies on the way; every group counts once."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from held_pairs import HeldPlan, wait_until

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm.engine.cluster import RayOptions, Resources, cluster
from bayesvlm.engine.fitting import RayFit, _GroupActor
from bayesvlm.engine.groups import waiting_file, waiting_files
from bayesvlm.fitting import FitSettings
from bayesvlm.testing import save_tiny_clip

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("ray_session")]

NEGATIVES, BATCH = 10, 4  # six groups of a shard each: 12 samples, of which 10 can be used
TWO_ACTORS = Resources(actors=2, cpus=0.5, gpus=0, decode_cpus=0.5, ahead=2)
OPTIONS = {"precision": "float64", "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture(scope="module")
def vlm(folder: Path) -> BayesVLM:
    return BayesVLM.from_pretrained(folder, device="cpu", dtype=torch.float64)


@pytest.fixture(scope="module")
def one_process(vlm: BayesVLM, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    """Fitted here, without Ray."""
    plan = HeldPlan.around(shards, NEGATIVES, BATCH, tmp_path_factory.mktemp("notes"))
    assert len(plan.groups) == 6
    return vlm.copy().fit(plan, NEGATIVES, **OPTIONS)  # type: ignore[arg-type]


def assert_same(found: BayesVLM, expected: BayesVLM) -> None:
    for tower in TOWERS:
        assert found.factors[tower].n == expected.factors[tower].n == 60
        for name in ("A_sum", "B_sum"):
            got, want = getattr(found.factors[tower], name), getattr(expected.factors[tower], name)
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10 * float(want.abs().max()))


def test_an_actor_that_is_killed_in_the_middle_of_a_group_is_replaced_and_the_group_counts_once(
    vlm: BayesVLM, one_process: BayesVLM, shards: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = HeldPlan.around(shards, NEGATIVES, BATCH, tmp_path / "notes", held=2)
    killed: list[int] = []

    def kill() -> None:
        killed.append(plan.holder())
        assert killed[0] != os.getpid()
        os.kill(killed[0], signal.SIGKILL)
        plan.let_go()

    killer = threading.Thread(target=kill)
    killer.start()
    with cluster(RayOptions()):
        found = vlm.copy().fit(plan, NEGATIVES, engine=RayFit(TWO_ACTORS), checkpoint=tmp_path / "kept", **OPTIONS)
    killer.join()
    assert capfd.readouterr().out == "", "Ray tells of a worker's death on standard output"
    assert len(killed) == 1
    assert_same(found, one_process)
    assert plan.readings() == {**dict.fromkeys(range(6), 1), 2: 2}
    assert found.provenance["read"] == one_process.provenance["read"]
    assert waiting_files(tmp_path / "kept") == []


DRIVER = """
import sys
from pathlib import Path
import torch
from held_pairs import HeldPlan
from bayesvlm import BayesVLM
from bayesvlm.engine.cluster import RayOptions, cluster
from bayesvlm.engine.fitting import RayFit

model, shards, notes, kept = map(Path, sys.argv[1:5])
vlm = BayesVLM.from_pretrained(model, device="cpu", dtype=torch.float64)
plan = HeldPlan.around(shards, int(sys.argv[5]), int(sys.argv[6]), notes, held=3)
with cluster(RayOptions(actors=2, cpus_per_actor=0.5)) as resources:
    vlm.fit(plan, int(sys.argv[5]), precision="float64", progress=False, engine=RayFit(resources), checkpoint=kept)
"""


def processes_of(session: Path) -> dict[int, str]:
    """Those that were started with a folder of Ray's, and what they are called."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                started, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"RAY_TMPDIR={session}".encode() in started:
                found[int(entry.name)] = command.decode(errors="replace")
    return found


def work(session: Path) -> bool:
    """Whether actors with the model, tasks that decode, or Ray's own server of the machine are there.

    Helpers of Ray's, which hold nothing, take a minute to notice, or `ray stop`.
    """
    called = processes_of(session).values()
    return any(name in each for each in called for name in ("MapWorker", "ray::IDLE", "ray::prepared", "raylet/raylet"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_driver_that_is_killed_leaves_nothing_running_and_another_goes_on_where_it_was(
    vlm: BayesVLM, one_process: BayesVLM, folder: Path, shards: Path, tmp_path: Path
) -> None:
    notes, kept, session = tmp_path / "notes", tmp_path / "kept", Path(f"/tmp/ray-of-{os.getpid()}")
    words = [folder, shards, notes, kept, NEGATIVES, BATCH]
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "RAY_TMPDIR": str(session), "RAY_worker_niceness": "0"}
    session.mkdir()
    driver = subprocess.Popen([sys.executable, str(script), *map(str, words)], env=environment)
    try:
        plan = HeldPlan.around(shards, NEGATIVES, BATCH, notes, held=3)
        later = [waiting_file(kept, index) for index in (4, 5)]
        wait_until(lambda: waiting_files(kept) == later or driver.poll() is not None)
        assert driver.poll() is None, "it ended by itself"
        assert plan.readings() == dict.fromkeys(range(6), 1)
        assert work(session)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        wait_until(lambda: not work(session))
    finally:
        driver.kill()
        for left in processes_of(session):
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        shutil.rmtree(session, ignore_errors=True)
    plan.let_go()
    found = vlm.copy().fit(plan, NEGATIVES, engine=RayFit(TWO_ACTORS), checkpoint=kept, **OPTIONS)
    assert_same(found, one_process)
    assert plan.readings() == {**dict.fromkeys(range(6), 1), 3: 2}
    assert waiting_files(kept) == []


def test_what_is_wrong_with_the_pairs_is_one_sentence(
    vlm: BayesVLM, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an actor gives back for a group that cannot be computed, and what the caller sees of it."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    plan = HeldPlan.around(shards, NEGATIVES, BATCH, tmp_path / "notes")
    plan.source.skipped.strict = True
    monkeypatch.setattr("bayesvlm.engine.fitting.end_with_node", lambda: None)  # this process is no worker
    actor = _GroupActor([ray.put((vlm, plan, FitSettings()))], TWO_ACTORS)
    (content,) = actor({"group": [0]})["result"]
    refused = pickle.loads(content)
    assert isinstance(refused, BayesVLMError)
    assert "00000.tar: 000000" in str(refused)
    assert "Traceback" not in str(refused)


def test_an_engine_takes_pairs_in_groups_alone(vlm: BayesVLM) -> None:
    with pytest.raises(BayesVLMError, match=r"a list, which only this process can go through"):
        vlm.copy().fit([(["a.png"], ["a"])], engine=RayFit(TWO_ACTORS))
