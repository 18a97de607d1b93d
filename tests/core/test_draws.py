"""One seed, one draw: whatever eigenvectors a processor returns, in either precision, many at once or one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.online import OnlineLaplace
from bayesvlm.core import predict
from bayesvlm.core.draws import coloured, group_sizes, standard_normal
from bayesvlm.core.factors import KroneckerFactors, Spectrum, symmetric_root
from bayesvlm.core.features import Features
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import cosine_groups, sample_cosines
from bayesvlm.core.projection import Projection

from .references import assert_close, normal

p, d, DRAWS = 7, 5, 4
PLAINEST = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def degenerate(size: int, seed: int) -> Tensor:
    """Symmetric, with a pair and a triple of equal eigenvalues: their eigenvectors may be any basis of the space."""
    basis = torch.linalg.qr(normal(size, size, seed=seed)).Q
    values = torch.tensor([1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0], dtype=torch.float64)[:size]
    return (basis * values) @ basis.T


def factors(seed: int) -> KroneckerFactors:
    return KroneckerFactors(3 * degenerate(p, seed), 3 * degenerate(d, seed + 1), 9)


def given(structure: Any = "damped", dtype: torch.dtype = torch.float64, seed: int = 0) -> Posterior:
    return Posterior(Projection(normal(d, p, seed=seed).to(dtype)), factors(seed + 1), 2.0, 0.5, structure)


def online() -> OnlineLaplace:
    begun = OnlineLaplace.begin(given(), ClassContrast(normal(3, d, seed=5), 4.0), 20.0)
    for row in range(3):
        begun = begun.step(Features(normal(1, p, seed=10 + row)), row, 1e-2)
    return begun


def published() -> InvertedPosterior:
    return InvertedPosterior(Projection(normal(d, p, seed=0)), degenerate(p, 3), normal(d, seed=4).abs())


SOURCES: dict[str, Callable[[], Any]] = {
    "damped": given,
    "exact": lambda: given("exact"),
    "published": published,
    "online": online,
}


def other_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From here on every decomposition comes with other signs, and other bases where eigenvalues are equal."""
    honest, made = torch.linalg.eigh, []

    def turned(matrix: Tensor) -> Any:
        values, vectors = honest(matrix)
        turn = torch.zeros_like(matrix)
        ends = [0, *(torch.diff(values) > 1e-9 * values.abs().max()).nonzero().flatten().add(1).tolist(), len(values)]
        for start, end in pairwise(ends):
            size = end - start
            turn[start:end, start:end] = torch.linalg.qr(normal(size, size, seed=50 + start)).Q
        made.append(len(values))
        return values, vectors @ -turn

    monkeypatch.setattr(torch.linalg, "eigh", turned)
    return made


@pytest.mark.parametrize("name", SOURCES)
def test_signs_and_bases_of_eigenvectors_do_not_enter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Features(normal(6, p, seed=20))
    first = SOURCES[name]().drawn_embeddings(inputs, DRAWS, torch.Generator().manual_seed(1))
    made = other_eigenvectors(monkeypatch)
    second = SOURCES[name]().drawn_embeddings(inputs, DRAWS, torch.Generator().manual_seed(1))
    assert made, "the decomposition was taken again"
    assert float(first.std(dim=0).min()) > 0.05, "there is something to get wrong"
    assert_close(second, first, 1e-9, name)


@pytest.mark.parametrize("structure", ["damped", "exact"])
def test_sampled_projections_likewise(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [each.weight for each in given(structure).sample(DRAWS, torch.Generator().manual_seed(1))]
    other_eigenvectors(monkeypatch)
    second = [each.weight for each in given(structure).sample(DRAWS, torch.Generator().manual_seed(1))]
    assert_close(torch.stack(second), torch.stack(first), 1e-9)


@pytest.mark.parametrize("structure", ["damped", "exact"])
def test_embeddings_are_those_of_the_sampled_projections(structure: str) -> None:
    posterior, inputs = given(structure), Features(normal(6, p, seed=20))
    sampled = [each.embed(inputs) for each in posterior.sample(DRAWS, torch.Generator().manual_seed(1))]
    drawn = posterior.drawn_embeddings(inputs, DRAWS, torch.Generator().manual_seed(1))
    assert_close(drawn, torch.stack(sampled), 1e-10)


def test_either_precision_has_the_same_draws() -> None:
    inputs = normal(6, p, seed=20)
    exact = given().drawn_embeddings(Features(inputs), DRAWS, torch.Generator().manual_seed(1))
    rounded = given(dtype=torch.float32).drawn_embeddings(
        Features(inputs.float()), DRAWS, torch.Generator().manual_seed(1)
    )
    assert rounded.dtype == torch.float32
    assert_close(rounded.double(), exact, 1e-5)


def test_the_symmetric_root() -> None:
    matrix = degenerate(p, 8)
    root = symmetric_root(Spectrum(*torch.linalg.eigh(matrix)))
    assert_close(root, root.T, 1e-12)
    assert_close(root @ root, matrix, 1e-12)


def test_noise_does_not_depend_on_how_much_is_made_at_once() -> None:
    like = torch.zeros((), dtype=torch.float64)
    whole = standard_normal(6, (d, p), torch.Generator().manual_seed(3), like)
    generator = torch.Generator().manual_seed(3)
    parts = torch.cat([standard_normal(count, (d, p), generator, like) for count in (1, 3, 2)])
    assert torch.equal(whole, parts)
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("count", [2, 2 * p])
def test_few_inputs_and_many_are_coloured_alike(count: int) -> None:
    """Either order of the two products."""
    mean, inputs, noise, root = (normal(*shape, seed=1) for shape in ((count, d), (count, p), (3, d, p), (d, d)))
    assert_close(coloured(mean, inputs, noise, root), mean + inputs @ noise.transpose(1, 2) @ root, 1e-12)
    flat = root[0].abs()
    expected = mean + inputs @ noise.transpose(1, 2) @ torch.diag(flat)
    assert_close(coloured(mean, inputs, noise, flat), expected, 1e-12)


def test_groups_of_draws() -> None:
    assert list(group_sizes(10, 1)) == [10]
    assert list(group_sizes(10, 2**23)) == [4, 4, 2]
    assert list(group_sizes(3, 2**40)) == [1, 1, 1]


def test_cosines_do_not_depend_on_the_size_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    image, text = given(), given(seed=7)
    images, texts = Features(normal(6, p, seed=20)), Features(normal(3, p, seed=21))
    whole = torch.stack(list(sample_cosines(image, images, text, texts, 9, seed=2)))
    sizes = iter([(2, 3, 4), (9,)])
    monkeypatch.setattr(predict, "group_sizes", lambda draws, size: next(sizes))
    for _ in range(2):
        assert_close(torch.cat(list(cosine_groups(image, images, text, texts, 9, seed=2))), whole, 1e-12)


SCRIPT = """
import json, math, torch
from bayesvlm import BayesVLM, Features
from bayesvlm.active import Epig, rank

def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

pairs, names = normal(300, 24, seed=0), normal(4, 24, seed=1)
vlm = BayesVLM.from_projections(normal(16, 24, seed=2) / 5, normal(16, 24, seed=3) / 5, math.log(20))
vlm.fit([(Features(pairs), Features(pairs + normal(300, 24, seed=4)))], progress=False)
labels = torch.arange(80) % 4
images = Features(normal(80, 24, seed=5) + names[labels])
drawn = vlm.posterior["image"].drawn_embeddings(images, 5, torch.Generator().manual_seed(6))
target, classes = Features(normal(20, 24, seed=7)), Features(names)
picks = rank(vlm, images, target, classes, "epig", 10, labels, options=Epig(targets=20))
print(json.dumps([drawn.tolist(), picks.indices.tolist(), picks.scores.tolist()]))
"""


def run_script(**environment: str) -> tuple[Tensor, list[int], Tensor]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    drawn, picks, scores = json.loads(done.stdout)
    return torch.tensor(drawn), picks, torch.tensor(scores)


def test_the_plainest_instruction_set_draws_and_chooses_the_same() -> None:
    """A process of its own each, since torch reads these variables when it is loaded."""
    (drawn, picks, scores), (plain_drawn, plain_picks, plain_scores) = run_script(), run_script(**PLAINEST)
    assert_close(plain_drawn, drawn, 1e-5, "draws")
    assert plain_picks == picks
    assert_close(plain_scores, scores, 1e-4, "scores")
