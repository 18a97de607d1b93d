"""The models inside the package: plain transformers checkpoints, half precision, able to read emoji, found by name."""

from __future__ import annotations

import io
import json
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features, check_adapter, embedded
from bayesvlm.artifacts import hub
from bayesvlm.embedded import MODELS, embedded_model, embedded_posterior
from bayesvlm.models import load_adapter, loading
from bayesvlm.testing.tiny import save_tiny_clip
from bayesvlm_world import Split, load

FOLDER = Path(__file__).parents[2] / "world/src/bayesvlm_world/models"
LEAST = {"emoji-clip": 0.57, "emoji-siglip": 0.56, "emoji-clip-colour": 0.50}
PREDICTING = "emoji-prolip"  # the one that transformers does not know
ROWS = slice(None, None, 4)  # 245 of the 979 new drawings


@dataclass(frozen=True)
class Reference:
    """A model as transformers loads it from its folder, without any code of the package."""

    name: str
    images: tuple[bytes, ...]
    classes: tuple[str, ...]

    @cached_property
    def model(self) -> Any:
        from transformers import AutoModel

        return AutoModel.from_pretrained(FOLDER / self.name).float().eval()

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(FOLDER / self.name)

    @cached_property
    def processor(self) -> Any:
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(FOLDER / self.name)

    @cached_property
    def logits(self) -> Tensor:  # [N, C]
        """Of every image with every name, as the model's own forward pass computes them."""
        names = [name.lower() for name in self.classes]  # SigLIP's tokenizer leaves that to its caller
        tokens = self.tokenizer(names, padding="max_length", truncation=True, return_tensors="pt")
        pixels = self.processor([Image.open(io.BytesIO(image)) for image in self.images], return_tensors="pt")
        with torch.no_grad():
            return self.model(input_ids=tokens["input_ids"], **pixels).logits_per_image


@pytest.fixture(scope="module")
def drawings() -> Split:
    return load("new-drawing")


@pytest.fixture(scope="module", params=sorted(LEAST))
def reference(request: pytest.FixtureRequest, drawings: Split) -> Reference:
    return Reference(request.param, drawings.images[ROWS], drawings.classes)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub and no network: whoever asks for them fails."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("somebody asked the network")

    for module, name in ((hub, "hf_hub_download"), (hub, "snapshot_download"), (loading, "snapshot_download")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


# The checkpoints -----------------------------------------------------------------------------------------------------


def test_the_names_are_the_folders() -> None:
    assert list(MODELS) == sorted([*LEAST, PREDICTING]) == sorted(path.name for path in FOLDER.iterdir())
    for name in MODELS:
        assert f'"{name}"' in str(BayesVLM.from_pretrained.__doc__)


def test_it_reads_new_drawings(reference: Reference, drawings: Split) -> None:
    """Of 1,531 names; guessing is right once in 1,531."""
    right = reference.logits.argmax(dim=1) == torch.tensor(drawings.labels[ROWS])
    assert len(right) > 120
    assert float(right.double().mean()) >= LEAST[reference.name]


def test_the_package_computes_what_transformers_does(reference: Reference) -> None:
    vlm = BayesVLM.from_pretrained(reference.name, device="cpu").without_posterior()
    ours = vlm.logits(list(reference.images[:16]), list(reference.classes[:100]))
    theirs = reference.logits[:16, :100] - (vlm.logit_bias or 0.0)
    torch.testing.assert_close(ours, theirs, atol=1e-5 * vlm.scale, rtol=0)


def test_the_adapter_tells_the_truth(reference: Reference) -> None:
    images = [Image.open(io.BytesIO(image)) for image in reference.images[:4]]
    report = check_adapter(load_adapter(reference.name, device="cpu"), images, reference.classes[:5])
    assert len(report.errors) > 3


def test_weights_are_in_half_precision(reference: Reference) -> None:
    with safe_open(FOLDER / reference.name / "model.safetensors", framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    assert kinds == {"F16"}
    assert sum(path.stat().st_size for path in (FOLDER / reference.name).iterdir()) < 10.5e6


def test_a_text_ends_where_the_model_looks_for_its_end(reference: Reference) -> None:
    """CLIP checkpoints with eos_token_id 2 are read another way by transformers: the largest token is their end."""
    eos = reference.model.config.text_config.eos_token_id
    assert eos != 2
    assert reference.tokenizer.eos_token_id == eos
    tokens = reference.tokenizer(["cat face", "a"])["input_ids"]
    assert all(row[-1] == eos for row in tokens)


def test_no_name_is_cut_short_or_unknown(reference: Reference) -> None:
    tokens = reference.tokenizer(list(reference.classes))["input_ids"]
    assert max(map(len, tokens)) <= reference.model.config.text_config.max_position_embeddings
    assert len({tuple(row) for row in tokens}) == len(reference.classes), "two names read the same"


def test_no_code_comes_with_it(reference: Reference) -> None:
    suffixes = {path.suffix for path in (FOLDER / reference.name).iterdir()}
    assert suffixes <= {".json", ".txt", ".safetensors", ".md"}
    assert "auto_map" not in json.loads((FOLDER / reference.name / "config.json").read_text())


# The one that predicts its variances ----------------------------------------------------------------------------------


def test_the_probabilistic_one_reads_new_drawings_by_every_method(drawings: Split) -> None:
    vlm = BayesVLM.from_pretrained(PREDICTING, device="cpu")
    images, texts = vlm.image_features(list(drawings.images[ROWS])), vlm.text_features(list(drawings.classes))
    truth = torch.tensor(drawings.labels[ROWS])
    assert vlm.predicts_variance
    for method in ("mean", "native", "probcosine"):
        right = vlm.classify(images, texts, method=method).labels == truth
        assert float(right.double().mean()) >= 0.5, method
    check_adapter(load_adapter(PREDICTING, device="cpu"))


def test_the_probabilistic_one_is_small_and_holds_no_code() -> None:
    with safe_open(FOLDER / PREDICTING / "model.safetensors", framework="pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    assert kinds == {"F16"}
    assert sum(path.stat().st_size for path in (FOLDER / PREDICTING).iterdir()) < 7.2e6
    assert {path.suffix for path in (FOLDER / PREDICTING).iterdir()} <= {".json", ".safetensors", ".md"}


# Found by name -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", sorted(LEAST))
def test_a_name_is_enough(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vlm = BayesVLM.from_pretrained(name, device="cpu")
    assert vlm.loss == ("sigmoid" if name == "emoji-siglip" else "infonce")
    assert vlm.adapter is not None
    assert vlm.adapter.name == name
    assert vlm.fitted


def test_other_names_are_not_embedded() -> None:
    for name in ("emoji", "emoji-clip/", "../models/emoji-clip", "", ".", "openai/clip-vit-base-patch32", Path("..")):
        assert embedded_model(name) is None, name
        assert embedded_posterior(name) is None, name
    assert embedded_model(Path("emoji-clip")) == embedded_model("emoji-clip") == FOLDER / "emoji-clip"


def test_a_name_that_is_nearly_right_gets_a_sentence() -> None:
    with pytest.raises(BayesVLMError, match=r"no model 'emoji-clap'; did you mean 'emoji-clip'\?"):
        BayesVLM.from_pretrained("emoji-clap", device="cpu")


@pytest.mark.parametrize("name", sorted(LEAST))
def test_the_posterior_in_the_package(name: str) -> None:
    folder = embedded_posterior(name)
    assert folder is not None, "from_pretrained promises one"
    config = json.loads((folder / "config.json").read_text())
    assert config["model"] == name, "it must find its model wherever the package is installed"
    vlm = BayesVLM.from_pretrained(name, device="cpu")
    assert vlm.factors["image"].n == vlm.factors["text"].n == config["pairs"]["image"]
    prediction = vlm.classify(list(load("validation").images[:4]), ["cat face", "pizza", "grinning face"])
    assert float(prediction.variance.min()) > 0
    assert not vlm.without_posterior().fitted


@pytest.fixture
def fitted() -> BayesVLM:
    """A posterior from twenty random activations: enough to be told from another."""
    vlm, draw = BayesVLM.from_pretrained("emoji-clip", device="cpu"), torch.Generator().manual_seed(0)
    images, texts = (
        torch.randn(20, projection.weight.shape[1], generator=draw) for projection in (vlm.image, vlm.text)
    )
    return vlm.without_posterior().fit([(Features(images), Features(texts))], progress=False)


@pytest.mark.usefixtures("offline")
def test_a_posterior_beside_the_models_comes_along(
    fitted: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").symlink_to(FOLDER, target_is_directory=True)
    monkeypatch.setattr(embedded, "world_folder", lambda: tmp_path)
    assert not BayesVLM.from_pretrained("emoji-clip", device="cpu").fitted, "there is none yet"
    fitted.save_pretrained(tmp_path / "posteriors/emoji-clip")
    loaded = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    assert loaded.factors["image"].n == 20
    assert loaded.lam == fitted.lam
    assert not BayesVLM.from_pretrained("emoji-siglip", device="cpu").fitted, "it is of another model"


def test_a_folder_of_that_name_comes_first(fitted: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny_clip(tmp_path / "emoji-clip")
    here = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    assert here.image.embedding_width == 24, "the tiny CLIP's"
    assert not here.fitted
    fitted.save_pretrained(tmp_path / "emoji-siglip")
    assert BayesVLM.from_pretrained("emoji-siglip", model=FOLDER / "emoji-clip", device="cpu").factors["image"].n == 20


def test_a_saved_posterior_finds_its_model_again(
    fitted: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = fitted.save_pretrained(tmp_path / "posterior")
    assert json.loads((saved / "config.json").read_text())["model"] == "emoji-clip", "no path of this machine"
    monkeypatch.chdir(tmp_path)
    images = list(load("validation").images[:3])
    loaded = BayesVLM.from_pretrained("posterior", device="cpu")
    names = ["cat face", "dog face"]
    torch.testing.assert_close(loaded.classify(images, names).probs, fitted.classify(images, names).probs)


def test_an_embedded_model_has_no_revisions() -> None:
    with pytest.raises(BayesVLMError, match="revision='v2'"):
        BayesVLM.from_pretrained("emoji-clip", device="cpu", revision="v2")


def test_a_posterior_may_be_called_like_its_model(
    fitted: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fitted.save_pretrained("emoji-clip")
    assert BayesVLM.from_pretrained("emoji-clip", device="cpu").factors["image"].n == 20
