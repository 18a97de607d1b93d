"""Fit and tune the posteriors that ship with the embedded models: `python posteriors.py emoji-clip`."""

from __future__ import annotations

import argparse

from bayesvlm.embedded import MODELS
from bayesvlm.experiments.demo import estimate
from bayesvlm.models.loading import brings_variances
from bayesvlm.vlm import BayesVLM
from bayesvlm_world import FOLDER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    fitted = [name for name in MODELS if not brings_variances(FOLDER / "models" / name)]
    parser.add_argument("names", nargs="*", default=fitted, help="which models; all that have one by default")
    for name in parser.parse_args().names:
        vlm = BayesVLM.from_pretrained(FOLDER / "models" / name, device="cpu")  # a folder comes without posterior
        estimate(vlm)
        print(vlm.save_pretrained(FOLDER / "posteriors" / name, model=name), vlm)


if __name__ == "__main__":
    main()
