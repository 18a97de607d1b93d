"""Does an adapter tell the truth about its model? Run this on every new family, and on a checkpoint you doubt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.images.decoding import ImageLike, as_images
from bayesvlm.models.adapter import TOLERANCE, Adapter, as_texts

_TEST_TEXTS = (
    "a cat",
    "A photo of a dog.",
    "",
    "two zebras, one of them drinking, beside a river at dusk in the dry season",
    "an unreasonably long caption " * 40,
)


@dataclass(frozen=True)
class AdapterReport:
    """The largest error of each check; all are within the tolerance, or `check_adapter` would have raised."""

    name: str
    dtype: torch.dtype
    tolerance: float
    errors: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(map(len, self.errors))
        lines = [f"  {check:<{width}}  {error:.1e}" for check, error in self.errors.items()]
        precision = str(self.dtype).removeprefix("torch.")
        return "\n".join([f"{self.name}: sound in {precision} (tolerance {self.tolerance:.0e})", *lines])


def check_adapter(
    adapter: Adapter, images: Iterable[ImageLike] | None = None, texts: Iterable[str] | None = None
) -> AdapterReport:
    """Check an adapter against its model's own forward pass.

    Embeddings rebuilt from the activations and the projection must equal the model's; the temperature and the bias must
    give the model's logits; neither the batch size nor a longer neighbour may change a result, nor a second run; the
    model must be in eval mode and nothing may carry gradients.

    Args:
        adapter: any implementation of `Adapter`.
        images: at least two, best of several shapes; None draws some.
        texts: at least two, best of several lengths; None takes some.

    Returns:
        The largest error of each check.

    Raises:
        BayesVLMError: naming the first check that fails, with the value found and the one expected.
    """
    pictures = as_images(_test_images() if images is None else images)
    sentences = as_texts(_TEST_TEXTS if texts is None else texts)
    if min(len(pictures), len(sentences)) < 2:
        raise BayesVLMError(
            f"check_adapter got {len(pictures)} image(s) and {len(sentences)} text(s); it compares batches, so pass at "
            "least two of each, or none to use its own."
        )
    _check_frozen(adapter)
    tolerance = TOLERANCE[adapter.dtype]
    report = AdapterReport(adapter.name, adapter.dtype, tolerance)

    def compare(check: str, found: Tensor, expected: Tensor) -> None:
        report.errors[check] = _largest_error(check, adapter.name, found, expected, tolerance)

    everything = max(len(pictures), len(sentences))
    image_features = adapter.encode_images(pictures, batch_size=everything)
    text_features = adapter.encode_texts(sentences, batch_size=everything)
    _check_ordinary(adapter, image_features, text_features)
    image_units, text_units = _units(adapter.image, image_features), _units(adapter.text, text_features)

    own = adapter.embed_reference(pictures, sentences)
    compare("image embeddings", image_units, own.image_embeddings)
    compare("text embeddings", text_units, own.text_embeddings)
    temperature = float(np.exp(adapter.logit_scale))
    cosines = own.image_embeddings.double() @ own.text_embeddings.double().T
    compare(
        "temperature and bias", cosines + (adapter.logit_bias or 0.0) / temperature, own.logits_per_image / temperature
    )

    again = _units(adapter.image, adapter.encode_images(pictures, batch_size=everything))
    compare("a second run, images", again, image_units)
    again = _units(adapter.text, adapter.encode_texts(sentences, batch_size=everything))
    compare("a second run, texts", again, text_units)

    shortest, longest = min(sentences, key=len), max(sentences, key=len)
    alone = _units(adapter.text, adapter.encode_texts([shortest]))
    beside = _units(adapter.text, adapter.encode_texts([shortest, longest]))
    compare("text padding", beside[:1], alone)
    compare("image batches", _units(adapter.image, adapter.encode_images(pictures, batch_size=1)), image_units)
    compare("text batches", _units(adapter.text, adapter.encode_texts(sentences, batch_size=1)), text_units)
    return report


def _check_frozen(adapter: Adapter) -> None:
    training = [name or "the model" for name, module in adapter.model.named_modules() if module.training]
    if training:
        raise BayesVLMError(
            f"Check 'eval mode' failed for {adapter.name!r}: {len(training)} modules are in training mode (such as "
            f"{training[-1]}), expected 0; call model.eval()."
        )
    learning = [name for name, parameter in adapter.model.named_parameters() if parameter.requires_grad]
    if learning:
        raise BayesVLMError(
            f"Check 'gradients off' failed for {adapter.name!r}: {len(learning)} parameters require gradients (such as "
            f"{learning[0]}), expected 0; call model.requires_grad_(False)."
        )


def _check_ordinary(adapter: Adapter, *features: Features) -> None:
    """Features must be plain tensors: no graph behind them, and usable in training and in place."""
    for tensor in (tensor for each in features for tensor in each.tensors().values()):
        if tensor.requires_grad or tensor.is_inference():
            kind = "require gradients" if tensor.requires_grad else "are inference tensors"
            raise BayesVLMError(
                f"Check 'gradients off' failed for {adapter.name!r}: the features {kind}, expected ordinary tensors; "
                "run the model in torch.inference_mode() and copy its activations outside of it."
            )


def _units(projection: Projection, features: Features) -> Tensor:  # [N, d]
    return normalize(projection.embed(features), dim=1)


def _largest_error(check: str, name: str, found: Tensor, expected: Tensor, tolerance: float) -> float:
    if found.shape != expected.shape:
        raise BayesVLMError(
            f"Check {check!r} failed for {name!r}: the shape is {list(found.shape)}, expected {list(expected.shape)}."
        )
    found, expected = found.double().cpu(), expected.double().cpu()
    errors = (found - expected).abs()
    worst = int(errors.argmax())
    error = float(errors.flatten()[worst])
    if not error <= tolerance:  # also when NaN
        raise BayesVLMError(
            f"Check {check!r} failed for {name!r}: found {float(found.flatten()[worst]):.6g}, expected "
            f"{float(expected.flatten()[worst]):.6g} (row {worst // found.shape[1]}, column {worst % found.shape[1]}), "
            f"which differ by {error:.1e} where at most {tolerance:.0e} is allowed."
        )
    return error


def _test_images() -> list[Image.Image]:
    """Noise, a gradient and a flat colour, upright, wide, tall and tiny."""
    generator = np.random.default_rng(0)
    noise = [
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for height, width in ((64, 64), (40, 150), (150, 40))
    ]
    return [*noise, Image.linear_gradient("L"), Image.new("RGB", (3, 3), "teal")]
