"""Sets as domains: which images fall to the pool, the target and validation, and how class lists meet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.experiments.domains import COLLECTIONS, domain_task, find_domains
from bayesvlm.experiments.feature_store import FeatureStore


def drawn_domains(folder: Path, domains: tuple[str, ...], classes: tuple[str, ...], each: int) -> None:
    """Class folders of small coloured images, in a folder for each domain."""
    for number, domain in enumerate(domains):
        for label, name in enumerate(classes):
            place = folder / domain / name
            place.mkdir(parents=True)
            for index in range(each):
                colour = (40 + 60 * label, 40 + 60 * number, index % 256)
                Image.new("RGB", (16, 16), colour).save(place / f"{index:05}.png")


@pytest.fixture(scope="module")
def encoder() -> FeatureStore:
    return FeatureStore(BayesVLM.from_pretrained("emoji-clip", device="cpu"))


def test_office_home_in_its_published_layout(encoder: FeatureStore, tmp_path: Path) -> None:
    archive = tmp_path / "officehome/OfficeHomeDataset_10072016"
    drawn_domains(archive, ("Art", "Clipart", "Product", "Real World"), ("Alarm_Clock", "Bed"), each=20)
    domains = find_domains("officehome")
    task = domain_task(encoder, domains, "Clipart", root=tmp_path)
    assert domains.targets == ("Art", "Clipart", "Product")
    assert task.name == "officehome/Clipart"
    assert set(task.domains) == {"Art", "Clipart", "Product", "RealWorld"}
    assert len(task.domains) == len(task.pool)
    own = task.domains.count("Clipart")
    assert own + len(task.target) + len(task.validation) == 40
    assert own > max(len(task.target), len(task.validation))
    other = domain_task(encoder, domains, "Art", root=tmp_path)
    assert torch.equal(other.pool.features.activations, task.pool.features.activations), "one pool for every target"
    named = encoder.texts(["a photo of a alarm clock.", "a photo of a bed."])
    assert torch.equal(task.classes.activations, named.activations)
    drawings = [part.features.activations for part in (task.target, task.validation)]
    drawings.append(task.pool.features.activations[[domain == "Clipart" for domain in task.domains]])
    apart = torch.cat(drawings)
    assert len(apart.unique(dim=0)) == 40, "no image is in two of them"


def test_the_pool_shows_the_target_s_classes_only(encoder: FeatureStore, tmp_path: Path) -> None:
    drawn_domains(tmp_path / "imagenet-r/imagenet-r", ("",), ("n01443537", "n02099601"), each=25)
    drawn_domains(tmp_path / "imagenet-sketch/sketch", ("",), ("n01440764", "n01443537", "n02099601"), each=25)
    for name, rows in {
        "imagenet-r/imagenet-r": "n01443537 goldfish\nn02099601 golden retriever\n",
        "imagenet-sketch/sketch": "n01440764 tench\nn01443537 goldfish\nn02099601 golden retriever\n",
    }.items():
        (tmp_path / name / "classnames.txt").write_text(rows)
    variants = COLLECTIONS["imagenet-variants"]
    assert max(variants.budgets) == 500
    small = domain_task(encoder, variants, "R", root=tmp_path)
    large = domain_task(encoder, variants, "Sketch", root=tmp_path)
    assert (len(small.classes), len(large.classes)) == (2, 3)
    assert len(large.pool) > len(small.pool)
    assert small.domains.count("R") == large.domains.count("R")
    goldfish = [task.pool.labels[torch.tensor([d == "R" for d in task.domains])] for task in (small, large)]
    assert torch.equal(goldfish[0] + 1, goldfish[1]), "the same images, by the names of their classes"
    assert small.pool.labels.max() == 1


@pytest.mark.parametrize(
    ("domains", "sentence"),
    [((), "has 0 subfolders; two domains or more"), (("summer",), "has 1 subfolders; two domains or more")],
)
def test_one_domain_is_too_few(tmp_path: Path, domains: tuple[str, ...], sentence: str) -> None:
    drawn_domains(tmp_path, domains, ("cat",), each=1)
    with pytest.raises(BayesVLMError, match=sentence):
        find_domains(str(tmp_path))


def test_a_domain_too_small_to_split(encoder: FeatureStore, tmp_path: Path) -> None:
    drawn_domains(tmp_path, ("summer", "winter"), ("cat", "dog"), each=1)
    with pytest.raises(BayesVLMError, match="The domain 'winter' has 2 images, of which"):
        domain_task(encoder, find_domains(str(tmp_path)), "winter")
    with pytest.raises(BayesVLMError, match="target='spring' is not known"):
        domain_task(encoder, find_domains(str(tmp_path)), "spring")
