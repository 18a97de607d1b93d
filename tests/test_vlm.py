"""BayesVLM from outside: what a user calls, against references computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.evidence import optimal_prior_precision
from bayesvlm.core.predict import plain_logits, plain_softmax
from bayesvlm.core.settings import Link, Settings

Draw = Callable[..., Tensor]


@pytest.fixture
def draw() -> Draw:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture(params=["infonce", "sigmoid"])
def vlm(request: pytest.FixtureRequest, draw: Draw) -> BayesVLM:
    """Both losses; the sigmoid one with biases, as SigLIP has."""
    extra = {} if request.param == "infonce" else {"logit_bias": -3.0, "image_bias": draw(6), "text_bias": draw(6)}
    return BayesVLM.from_projections(draw(6, 10), draw(6, 8), 1.5, loss=request.param, **extra)


def pairs(draw: Draw, n: int) -> tuple[Features, Features]:
    return Features(draw(n, 10)), Features(draw(n, 8))


def embed(vlm: BayesVLM, tower: str, features: Features) -> Tensor:
    projection = getattr(vlm, tower)
    g = features.activations @ projection.weight.T
    return g if projection.bias is None else g + projection.bias


def test_fit_gives_the_factors_of_the_method(vlm: BayesVLM, draw: Draw) -> None:
    images, texts = pairs(draw, 50)
    assert vlm.fit([(images, texts)]) is vlm
    g, h, t = embed(vlm, "image", images), embed(vlm, "text", texts), math.exp(1.5)
    for tower, features, source, target in (("image", images, g, h), ("text", texts, h, g)):
        phi = features.activations
        if vlm.loss == "sigmoid":
            phi = torch.cat([phi, torch.ones(50, 1, dtype=phi.dtype)], dim=1)
        B = (
            infonce_curvature(source, target, t)
            if vlm.loss == "infonce"
            else sigmoid_curvature(source, target, t, -3.0)
        )
        assert vlm.factors[tower].n == 50
        torch.testing.assert_close(vlm.factors[tower].A, phi.T @ phi / math.sqrt(50))
        torch.testing.assert_close(vlm.factors[tower].B, B / math.sqrt(50))


def test_batches_do_not_matter_and_negatives_do(vlm: BayesVLM, draw: Draw) -> None:
    images, texts = pairs(draw, 60)
    whole = vlm.fit([(images, texts)]).factors["image"].B
    stream = [(images[i : i + 7], texts[i : i + 7]) for i in range(0, 60, 7)]
    torch.testing.assert_close(vlm.fit(stream).factors["image"].B, whole)
    assert not torch.allclose(vlm.fit(stream, negatives=20).factors["image"].B, whole)


def test_lam_follows_tau_by_the_evidence(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    for tau, structure in ((1.0, "damped"), (7.0, "damped"), (7.0, "exact")):
        changed = vlm.replace(tau=tau, structure=structure)
        for tower in ("image", "text"):
            factors, norm = vlm.factors[tower], getattr(vlm, tower).norm_squared
            expected = optimal_prior_precision(factors.A, factors.B, norm, tau, structure)
            assert changed.lam[tower] == pytest.approx(expected, rel=1e-10)
    assert vlm.tau == 1.0, "replace must not touch the original"
    given = vlm.replace(lam={"image": 2.0, "text": 3.0})
    assert given.replace(tau=9.0).lam == {"image": 2.0, "text": 3.0}, "a given lam stays"
    assert given.replace(lam="evidence").lam == vlm.lam
    lam = {"image": 2.0, "text": 3.0}
    changed = vlm.replace(lam=lam)
    lam["image"] = -1.0
    assert changed.lam == {"image": 2.0, "text": 3.0}, "nobody else's dictionary is shared"
    assert given.fit([pairs(draw, 50)]).settings.lam is None, "new factors, new lam"


def test_similarity_is_prob_cosine_written_out(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    images, texts = pairs(draw, 4)
    for covariance in ("diagonal", "full"):
        model = vlm.replace(covariance=covariance, tau=3.0)
        moments = model.similarity(images, texts)
        for i in range(4):
            for j in range(4):
                mean, variance = by_hand(model, images[i], texts[j], covariance)
                assert float(moments.mean[i, j]) == pytest.approx(mean, rel=1e-9)
                assert float(moments.variance[i, j]) == pytest.approx(variance, rel=1e-9)


def by_hand(model: BayesVLM, image: Features, text: Features, covariance: str) -> tuple[float, float]:
    mu, sigma = {}, {}
    for tower, features in (("image", image), ("text", text)):
        factors, lam = model.factors[tower], model.lam[tower]
        phi = features.activations[0]
        if model.loss == "sigmoid":
            phi = torch.cat([phi, phi.new_ones(1)])
        At = math.sqrt(model.tau) * factors.A + math.sqrt(lam) * torch.eye(len(phi), dtype=phi.dtype)
        Bt = math.sqrt(model.tau) * factors.B + math.sqrt(lam) * torch.eye(6, dtype=phi.dtype)
        R = torch.linalg.inv(Bt)
        R = torch.diag(torch.diag(R)) if covariance == "diagonal" else R
        mu[tower] = embed(model, tower, features)[0]
        sigma[tower] = float(phi @ torch.linalg.solve(At, phi)) * R
    g, h, Sg, Sh = mu["image"], mu["text"], sigma["image"], sigma["text"]
    sg, sh = float(g @ g + Sg.trace()), float(h @ h + Sh.trace())
    variance = float(h @ Sg @ h + g @ Sh @ g + (Sg * Sh).sum()) / (sg * sh)
    return float(g @ h) / math.sqrt(sg * sh), variance


def test_classify_is_the_probit_of_the_moments(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    images, texts = pairs(draw, 5)
    p, t = vlm.classify(images, texts), math.exp(1.5)
    shrunk = t * p.mean / (1 + math.pi / 8 * t**2 * p.variance).sqrt()
    torch.testing.assert_close(p.probs, torch.softmax(shrunk, dim=1))
    torch.testing.assert_close(p.probs.sum(dim=1), torch.ones(5, dtype=torch.float64))
    assert torch.equal(p.labels, p.probs.argmax(dim=1))
    if vlm.loss == "sigmoid":
        shrunk = (t * p.mean - 3.0) / (1 + math.pi / 8 * t**2 * p.variance).sqrt()
        torch.testing.assert_close(p.label_probs, torch.sigmoid(shrunk))
    else:
        assert p.label_probs is None


def test_one_class_is_said_to_tell_nothing(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 40)])
    instead = r"; label_probs has that of the label by itself\." if vlm.loss == "sigmoid" else r"could be\.$"
    with pytest.warns(UserWarning, match=f"one class only, so its probability is always 1 .*{instead}") as caught:
        assert vlm.classify(Features(draw(3, 10)), Features(draw(1, 8))).probs.tolist() == [[1.0]] * 3
    assert [warning.filename for warning in caught] == [__file__], "it points to the caller"


def test_logits_are_scaled_cosines(vlm: BayesVLM, draw: Draw) -> None:
    images, texts = pairs(draw, 5)
    g, h = embed(vlm, "image", images), embed(vlm, "text", texts[:3])
    cosines = torch.tensor([[float(x @ y / (x.norm() * y.norm())) for y in h] for x in g], dtype=torch.float64)
    torch.testing.assert_close(plain_logits(g, h, 7.0), 7.0 * cosines)
    torch.testing.assert_close(plain_softmax(g, h, 7.0), torch.softmax(7.0 * cosines, dim=1))
    logits = vlm.logits(images, texts[:3])
    torch.testing.assert_close(logits, math.exp(1.5) * cosines)  # no bias: one number for all classes changes nothing
    torch.testing.assert_close(vlm.plain(images, texts[:3]), torch.softmax(logits, dim=1))
    vlm.fit([pairs(draw, 50)])
    assert torch.equal(vlm.logits(images, texts[:3]), logits), "a posterior changes nothing here"
    torch.testing.assert_close(plain_logits(g.float(), h.float(), 7.0), 7.0 * cosines.float(), atol=1e-5, rtol=0)
    with pytest.raises(BayesVLMError, match="class list is empty"):
        vlm.logits(images, [])


def test_without_posterior_is_as_if_there_had_been_none(vlm: BayesVLM, draw: Draw) -> None:
    images, texts = pairs(draw, 5)
    plain = vlm.plain(images, texts)
    vlm.fit([pairs(draw, 50)], provenance={"source": "a test"})
    changed = vlm.replace(tau=3.0, lam={"image": 2.0, "text": 3.0}, structure="exact", covariance="full", link="mc")
    bare = changed.without_posterior()
    assert not bare.fitted
    assert bare.settings == Settings()
    assert bare.provenance == {}
    assert torch.equal(bare.plain(images, texts), plain)
    with pytest.raises(BayesVLMError, match="no posterior yet; call fit"):
        bare.classify(images, texts)
    assert changed.fitted, "the original keeps its own"
    assert changed.tau == 3.0
    assert changed.provenance["source"] == "a test"
    stream = pairs(draw, 40)
    again = bare.fit([stream]).classify(images, texts).probs
    torch.testing.assert_close(again, vlm.fit([stream]).classify(images, texts).probs)


@pytest.mark.parametrize("link", ["probit", "centred", "mc"])
def test_the_entropy_shown_is_the_sum_of_the_parts_shown(vlm: BayesVLM, draw: Draw, link: Link) -> None:
    vlm.fit([pairs(draw, 50)])
    images, texts = pairs(draw, 5)
    p = vlm.replace(link=link).classify(images, texts, draws=64)
    torch.testing.assert_close(p.epistemic + p.aleatoric, p.entropy)
    torch.testing.assert_close(p.epistemic / p.entropy, p.monte_carlo.epistemic / p.monte_carlo.total)
    assert float(p.epistemic.min()) > 0
    assert float(p.aleatoric.min()) > 0
    assert float(p.entropy.max()) <= math.log(5) + 1e-12
    if link == "mc":
        torch.testing.assert_close(p.epistemic, p.monte_carlo.epistemic)
        torch.testing.assert_close(p.entropy, p.monte_carlo.total)


def test_draws_are_fixed_by_the_seed_and_agree_where_all_is_certain(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    images, texts = pairs(draw, 5)
    p = vlm.replace(link="mc").classify(images, texts, draws=64)
    again = vlm.replace(link="mc").classify(images, texts, draws=64)
    assert torch.equal(p.probs, again.probs), "the draws are fixed by the seed"
    certain = vlm.replace(lam={"image": 1e12, "text": 1e12}).classify(images, texts)
    assert float(certain.epistemic.max()) < 1e-6
    torch.testing.assert_close(certain.probs, vlm.plain(images, texts), atol=1e-6, rtol=0)


def test_tune_finds_the_best_tau_and_sets_it(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    images, texts = pairs(draw, 40)
    labels = torch.arange(40) % 5
    with pytest.warns(BayesVLMWarning, match="an end of the grid"):
        grid = vlm.tune(images, labels, texts[:5], taus=[0.1, 1.0, 10.0, 100.0]).tuning
    assert len(grid) > 4, "it refines around the best grid point"
    assert vlm.tau == grid.best.tau
    assert grid.best.lam == vlm.lam

    def nlpd(tau: float) -> float:
        probs = vlm.replace(tau=tau).classify(images, texts[:5]).probs
        return -float(probs[torch.arange(40), labels].log().mean())

    for point in grid:
        assert point.nlpd == pytest.approx(nlpd(point.tau), abs=1e-9)
        assert point.nlpd >= grid.best.nlpd
    dense = min(nlpd(10 ** (k / 20)) for k in range(-20, 41))
    assert grid.best.nlpd <= dense + 1e-3


def test_save_and_load_bring_everything_back(vlm: BayesVLM, draw: Draw, tmp_path: Path) -> None:
    vlm.fit([pairs(draw, 50)], provenance={"source": "a test"})
    images, texts = pairs(draw, 5)
    vlm = vlm.replace(tau=3.0, covariance="full", link="centred", structure="exact")
    loaded = BayesVLM.from_pretrained(vlm.save_pretrained(tmp_path / "posterior"), device="cpu")
    assert loaded.settings == vlm.settings
    assert loaded.lam == vlm.lam
    assert loaded.provenance == vlm.provenance
    assert loaded.provenance["source"] == "a test"
    assert torch.equal(loaded.classify(images, texts).probs, vlm.classify(images, texts).probs)


def test_an_interrupted_fit_goes_on(vlm: BayesVLM, draw: Draw, tmp_path: Path) -> None:
    images, texts = pairs(draw, 75)
    stream = [(images[i : i + 8], texts[i : i + 8]) for i in range(0, 75, 8)]
    whole = vlm.fit(stream, negatives=20).factors
    checkpoint = tmp_path / "fit.safetensors"

    def cut_short():
        yield from stream[:7]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vlm.fit(cut_short(), negatives=20, checkpoint=checkpoint)
    assert torch.equal(vlm.factors["image"].B_sum, whole["image"].B_sum), "an interrupted fit replaces nothing"
    assert checkpoint.exists()
    with pytest.raises(BayesVLMError, match="negatives is 20 there and 10 here"):
        vlm.fit(stream, negatives=10, checkpoint=checkpoint)
    with pytest.raises(BayesVLMError, match="are not those"):
        vlm.fit([(images[1:], texts[1:])], negatives=20, checkpoint=checkpoint)
    with pytest.raises(BayesVLMError, match="holds 40 pairs, but only 30 were given"):
        vlm.fit([(images[:30], texts[:30])], negatives=20, checkpoint=checkpoint)
    resumed = vlm.fit(stream, negatives=20, checkpoint=checkpoint).factors
    for tower in ("image", "text"):
        assert resumed[tower].n == 75
        torch.testing.assert_close(resumed[tower].A, whole[tower].A)
        torch.testing.assert_close(resumed[tower].B, whole[tower].B)


def test_mistakes_get_a_sentence(vlm: BayesVLM, draw: Draw) -> None:
    images, texts = pairs(draw, 5)
    with pytest.raises(BayesVLMError, match="no posterior yet; call fit"):
        vlm.classify(images, texts)
    with pytest.raises(BayesVLMError, match="given 1 pair"):
        vlm.fit([pairs(draw, 1)])
    with pytest.raises(BayesVLMError, match="given 0 pair"):
        vlm.fit([])
    with pytest.raises(BayesVLMError, match="5 images and 4 texts"):
        vlm.fit([(images, texts[:4])])
    vlm.fit([(images, texts)])
    bad = images.activations.clone()
    bad[3, 2] = math.nan
    with pytest.raises(BayesVLMError, match=r"NaN or Inf in 1 of 5 rows \(3\)"):
        vlm.classify(Features(bad), texts)
    with pytest.raises(BayesVLMError, match="9 wide but this tower's projection takes 10"):
        vlm.classify(Features(draw(2, 9)), texts)
    for tau in (-1.0, 0.0, math.nan, math.inf):
        with pytest.raises(BayesVLMError, match="tau="):
            vlm.replace(tau=tau)
    with pytest.raises(BayesVLMError, match="above zero"):
        vlm.replace(lam={"image": -1.0, "text": 1.0})
    with pytest.raises(BayesVLMError, match="both towers"):
        vlm.replace(lam={"image": 1.0})
    with pytest.raises(BayesVLMError, match="'dense' is not known"):
        vlm.replace(structure="dense")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match=r"lam=2\.0; it takes both towers"):
        vlm.replace(lam=2.0)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="classes=None"):
        vlm.classify(images, None)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="labels=None"):
        vlm.tune(images, None, texts)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="one class only"):
        vlm.tune(images, [0] * 5, texts[:1])
    for nonsense in (None, "folder", [(images, texts, texts)], [images]):
        with pytest.raises(BayesVLMError, match=r"\(images, texts\)"):
            vlm.fit(nonsense)  # type: ignore[arg-type]
    if vlm.loss == "infonce":
        with pytest.raises(BayesVLMError, match=r"rows \[0, 1\] are zero"):
            vlm.classify(Features(torch.zeros(2, 10)), texts)
    with pytest.raises(BayesVLMError, match="class list is empty"):
        vlm.classify(images, [])
    with pytest.raises(BayesVLMError, match="'cat' more than once"):
        vlm.classify(images, ["cat", "dog", "cat"])
    with pytest.raises(BayesVLMError, match="cannot encode images"):
        vlm.classify(["photo.jpg"], texts)
    with pytest.raises(BayesVLMError, match="run from 0 to 7, but there are 5 classes"):
        vlm.tune(images, [0, 1, 2, 3, 7], texts)
    with pytest.raises(BayesVLMError, match="5 inputs and 2 labels"):
        vlm.tune(images, [0, 1], texts)


def test_projections_that_cannot_meet(draw: Draw) -> None:
    with pytest.raises(BayesVLMError, match="6 dimensions and the text projection to 7"):
        BayesVLM.from_projections(draw(6, 10), draw(7, 8), 1.0)
    with pytest.raises(BayesVLMError, match="needs logit_bias"):
        BayesVLM.from_projections(draw(6, 10), draw(6, 8), 1.0, loss="sigmoid")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (1 / 0.07, r"logit_scale=14.2857 means the temperature t = exp\(14.2857\) = 1.6e\+06, .* = 2.66 where t is"),
        (100.0, r"log\(100\) = 4.61 where t is 100"),
        (1e6, "no model is trained beyond 10,000"),
        (math.nan, "logit_scale=nan; it must be a number, the logarithm"),
        ("warm", "logit_scale=warm; it must be a number"),
    ],
)
def test_a_temperature_that_is_not_a_logarithm(draw: Draw, given: float, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        BayesVLM.from_projections(draw(6, 10), draw(6, 8), given)


def test_temperatures_that_are_trained_are_taken(draw: Draw) -> None:
    for scale in (118.0, 500.0):
        assert BayesVLM.from_projections(draw(6, 10), draw(6, 8), math.log(scale)).scale == pytest.approx(scale)


def test_a_posterior_for_a_singular_factor_simply_works(draw: Draw) -> None:
    vlm = BayesVLM.from_projections(draw(6, 40), draw(6, 30), 1.5)
    vlm.fit([(Features(draw(9, 40)), Features(draw(9, 30)))])  # 9 pairs: both A are singular
    for structure in ("damped", "exact"):
        p = vlm.replace(structure=structure).classify(Features(draw(3, 40)), Features(draw(4, 30)))
        assert torch.isfinite(p.probs).all()
        assert float(p.variance.min()) > 0


def test_push_to_hub_uploads_the_saved_folder(vlm: BayesVLM, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesvlm.artifacts import hub

    calls: dict[str, object] = {}

    class Api:
        def __init__(self, token: str | None) -> None:
            calls["token"] = token

        def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> str:
            calls["created"] = (repo_id, private, exist_ok)
            return f"https://hub/{repo_id}"

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            calls["files"] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr(hub, "HfApi", Api)
    vlm.fit([pairs(draw, 20)])
    assert vlm.push_to_hub("me/posterior", private=True, token="secret") == "https://hub/me/posterior"
    assert calls["created"] == ("me/posterior", True, True)
    assert calls["files"] == ["README.md", "config.json", "posterior.safetensors", "projections.safetensors"]


def test_a_posterior_knows_the_temperature_and_the_loss(draw: Draw) -> None:
    weights = draw(6, 10), draw(6, 8)
    saved = BayesVLM.from_projections(*weights, 1.5).fit([pairs(draw, 20)]).saved()
    with pytest.raises(BayesVLMError, match=r"logit_scale = 1.5, but it is 2.5 for these projections"):
        BayesVLM.from_projections(*weights, 2.5).with_posterior(saved)
    with pytest.raises(BayesVLMError, match="loss = infonce"):
        BayesVLM.from_projections(*weights, 1.5, -1.0, loss="sigmoid").with_posterior(saved)


def test_projections_of_two_dtypes_meet_in_the_wider(draw: Draw) -> None:
    vlm = BayesVLM.from_projections(draw(6, 10), draw(6, 8).float(), 1.5).fit([pairs(draw, 20)])
    assert vlm.classify(*pairs(draw, 3)).probs.dtype == torch.float64


def test_projections_are_copied(draw: Draw) -> None:
    weight = draw(6, 10)
    vlm = BayesVLM.from_projections(weight, draw(6, 8), 1.5)
    before = vlm.image.weight.clone()
    weight.zero_()
    assert torch.equal(vlm.image.weight, before)


def test_provenance_must_be_json(vlm: BayesVLM, draw: Draw) -> None:
    with pytest.raises(BayesVLMError, match="provenance is kept as json"):
        vlm.fit([pairs(draw, 20)], provenance={"source": Path("somewhere")})


def test_a_folder_is_no_address_on_the_hub(tmp_path: Path) -> None:
    from bayesvlm.testing.tiny import save_tiny_clip

    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "clip"), device="cpu")
    generator = torch.Generator().manual_seed(0)
    features = Features(torch.randn(20, 48, generator=generator)), Features(torch.randn(20, 32, generator=generator))
    with pytest.raises(BayesVLMError, match="which nobody else has"):
        vlm.fit([features]).push_to_hub("me/posterior")


def test_open_files_are_images_as_any_other(tmp_path: Path) -> None:
    from io import BytesIO

    from PIL import Image

    from bayesvlm.testing.tiny import save_tiny_clip

    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "clip"), device="cpu")
    colours, files = ["red", "green", "blue", "black"], []
    for colour in colours:
        files.append(BytesIO())
        Image.new("RGB", (32, 32), colour).save(files[-1], "PNG")
    whole = vlm.fit([([file.getvalue() for file in files], colours)]).factors["image"].B
    checkpoint = tmp_path / "fit.safetensors"
    found = vlm.fit([(files, colours)], negatives=4, checkpoint=checkpoint).factors["image"].B
    torch.testing.assert_close(found, whole)
    with pytest.raises(BayesVLMError, match="are not those"):
        vlm.fit([(files[::-1], colours)], negatives=4, checkpoint=checkpoint)
    single = vlm.fit(zip(files, colours, strict=True)).factors["image"].B
    torch.testing.assert_close(single, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max()))
    assert torch.equal(vlm.classify(files[0], colours).probs, vlm.classify(files[0].getvalue(), colours).probs)


def test_fit_takes_single_pairs_and_generators(tmp_path: Path) -> None:
    from PIL import Image

    from bayesvlm.testing.tiny import save_tiny_clip

    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "clip"), device="cpu")
    colours = ["red", "green", "blue", "black"]
    images = [Image.new("RGB", (32, 32), colour) for colour in colours]
    whole = vlm.fit([(images, colours)]).factors["image"].B
    single = vlm.fit((image, colour) for image, colour in zip(images, colours, strict=True)).factors["image"].B
    torch.testing.assert_close(single, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max()))
    lazy = vlm.fit([((image for image in images), (colour for colour in colours))]).factors["image"].B
    torch.testing.assert_close(lazy, whole)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_items_of_one_tower_share_its_draws(vlm: BayesVLM, draw: Draw, tower: Any) -> None:
    vlm.fit([pairs(draw, 50)])
    model = vlm.replace(covariance="full", lam={"image": 1e5, "text": 1e5})  # small variances: linearised they hold
    x, y = (Features(draw(count, 10 if tower == "image" else 8)) for count in (4, 3))
    both = Features(torch.cat([x.activations, y.activations]))
    found = model.similarity(x, y, towers=(tower, tower))
    unit = torch.nn.functional.normalize(embed(model, tower, both), dim=1)
    torch.testing.assert_close(found.mean, unit[:4] @ unit[4:].T)
    drawn = model.posterior[tower].drawn_embeddings(both, 20_000, torch.Generator().manual_seed(0))
    drawn = torch.nn.functional.normalize(drawn, dim=2)
    sampled = torch.einsum("snd,smd->snm", drawn[:, :4], drawn[:, 4:]).var(dim=0)
    torch.testing.assert_close(found.variance, sampled, rtol=0.06, atol=0)  # six standard errors
    for covariance in ("diagonal", "full"):
        own = model.replace(covariance=covariance).similarity(x, x, towers=(tower, tower))
        assert float(own.variance.diagonal().abs().max()) < 1e-12
        assert float(own.interval()[0].diagonal().min()) > 1 - 1e-6


def test_the_towers_of_a_similarity_are_seen_from_what_is_given(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    images, texts = world.load("openmoji-black").images[:3], ["grinning face", "a cat"]
    files = [tmp_path / f"{place}.png" for place in range(3)]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(image)
    joint = vlm.similarity(images, images)
    assert float(joint.variance.diagonal().max()) < 1e-12
    opened = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image.convert("RGB").resize((32, 32))) for image in opened])
    for others in (files, opened, tuple(files), np.array(files)):
        torch.testing.assert_close(vlm.similarity(images, others).variance, joint.variance, rtol=1e-3, atol=1e-9)
    assert vlm.similarity(images, arrays).mean.shape == (3, 3)
    assert vlm.similarity(files[0], images[0]).mean.shape == (1, 1)
    with_texts = vlm.similarity(images, texts)
    for names in (tuple(texts), np.array(texts), np.array(texts, dtype=object), iter(texts)):
        torch.testing.assert_close(vlm.similarity([str(file) for file in files], names).mean, with_texts.mean)
    turned = vlm.similarity(texts, files, towers=("text", "image"))
    torch.testing.assert_close(turned.mean, with_texts.mean.T)
    torch.testing.assert_close(turned.variance, with_texts.variance.T)
    words = vlm.similarity(texts, texts, towers=("text", "text"))
    assert float(words.variance.diagonal().max()) < 1e-12 < float(words.variance[0, 1])


def test_what_one_tower_cannot_say(vlm: BayesVLM, draw: Draw) -> None:
    vlm.fit([pairs(draw, 50)])
    images = pairs(draw, 3)[0]
    for towers in (("image",), "image", ("image", "video"), 3):
        with pytest.raises(BayesVLMError, match="name what both are"):
            vlm.similarity(images, images, towers=towers)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="exact posterior has no covariance shape"):
        vlm.replace(structure="exact").similarity(images, images, towers=("image", "image"))
