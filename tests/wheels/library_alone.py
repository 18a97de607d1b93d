"""Run where only the library is installed: it works with models of one's own, and says what the rest comes with."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from commands import bayesvlm, check, python

NO_TORCH = """
import sys
from bayesvlm.cli import main
sys.argv = ["bayesvlm", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code
sys.exit("torch" in sys.modules)
"""
FROM_PRETRAINED = "from bayesvlm import BayesVLM; BayesVLM.from_pretrained('emoji-clip')"
IMPORT_WORLD = "from bayesvlm import world"
WHOLE_WORKFLOW = """
import tempfile
import numpy as np, torch
from PIL import Image
from bayesvlm import BayesVLM
from bayesvlm.testing.tiny import save_tiny_clip

random = np.random.default_rng(0)
images = [Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(24)]
texts = [f"picture number {number}" for number in range(24)]
classes = ["a red thing", "a blue thing", "a green thing"]
with tempfile.TemporaryDirectory() as folder:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(folder + "/model"))
    vlm.fit([(images[:12], texts[:12]), (images[12:], texts[12:])])
    vlm.tune(images, [number % 3 for number in range(24)], classes)
    found = vlm.classify(images[:4], classes)
    assert found.probs.shape == (4, 3) and bool((found.variance > 0).all())
    vlm.save_pretrained(folder + "/posterior")
    again = BayesVLM.from_pretrained(folder + "/posterior").classify(images[:4], classes)
    torch.testing.assert_close(again.probs, found.probs)
    from bayesvlm.serving import pipeline
    answers = pipeline(folder + "/posterior")(images[0], candidate_labels=classes, hypothesis_template="{}")
    assert [answer["label"] for answer in answers] == [classes[k] for k in found.probs[0].argsort(descending=True)]
    vlm.head(classes).export(folder + "/model.pt2")
"""
EXTRAS = {  # what needs an extra -> the extra
    "from bayesvlm.serving import BayesianZeroShotClassifier": "sklearn",
    "from bayesvlm.serving import load_exported; load_exported('model.onnx')": "onnx",
    "from bayesvlm.serving.export import export_paths; export_paths('model.onnx')": "onnx",
    "from bayesvlm.engine import RayOptions, cluster; cluster(RayOptions()).__enter__()": "ray",
}


def main() -> None:
    """Every promise about the library by itself."""
    for absent in ("bayesvlm_world", "bayesvlm_paper"):
        assert find_spec(absent) is None, f"{absent} is installed; this is for an environment without it"
    ran = bayesvlm("--help")
    check(ran.returncode == 0 and "classify" in ran.stdout, "bayesvlm --help", ran)
    ran = python(NO_TORCH)
    check(ran.returncode == 0, "bayesvlm --help loads no torch", ran)
    for words, extra in ((("demo",), "world"), (("reproduce", "x"), "paper"), (("info", "emoji-clip"), "world")):
        ran = bayesvlm(*words)
        errors = [line for line in ran.stderr.splitlines() if line]
        said = len(errors) == 1 and errors[0].startswith("error: ") and errors[0].endswith(remedy(extra))
        check(ran.returncode == 2 and said, f"bayesvlm {' '.join(words)} says what to install", ran)
    for code, what in (
        (FROM_PRETRAINED, "from_pretrained('emoji-clip')"),
        (IMPORT_WORLD, "from bayesvlm import world"),
    ):
        ran = python(code)
        last = ran.stderr.strip().splitlines()[-1]
        said = last.startswith("bayesvlm.core.errors.BayesVLMError: ") and last.endswith(remedy("world"))
        check(ran.returncode == 1 and said, f"{what} says what to install", ran)
    for code, extra in EXTRAS.items():
        ran = python(code)
        last = ran.stderr.strip().splitlines()[-1]
        said = "BayesVLMError: " in last and f"pip install 'bayesvlm[{extra}]'" in last
        check(ran.returncode == 1 and said, f"{code.split(';')[0]} says what to install", ran)
    ran = bayesvlm("bench", "--quick", "--repeats", "2", "--check")
    said = "Tiny sizes" in ran.stdout and "No results are kept with an installed library" in ran.stderr
    check(ran.returncode == 0 and said, "bayesvlm bench measures, and has nothing to compare with", ran)
    ran = python(WHOLE_WORKFLOW)
    check(ran.returncode == 0, "a tiny CLIP is fitted, tuned, asked, saved and loaded", ran)


def remedy(extra: str) -> str:
    return f"which is not installed: `pip install 'bayesvlm[{extra}]'`."


if __name__ == "__main__":
    main()
