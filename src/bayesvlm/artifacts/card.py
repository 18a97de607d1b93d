"""The README.md of a saved posterior: what it is, its own numbers, how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from bayesvlm.artifacts.reading import summary
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors

_TEMPLATE = """\
---
library_name: bayesvlm
tags: [uncertainty, laplace-approximation, vision-language]
{%- if model and "/" in model and not model.startswith(("/", "."))  %}
base_model: {{ model }}
{%- endif %}
---
# Posterior of {{ model or "a pair of projections" }}

A Gaussian posterior over the last projection of each tower, estimated after training by a Laplace approximation with
Kronecker factors (BayesVLM: Post-hoc Probabilistic Vision-Language Models). It turns embeddings into Gaussians and
cosines into means with variances.

| | image | text |
|---|---|---|
| pairs | {{ factors.image.n }} | {{ factors.text.n }} |
| inputs p (a bias counts as one) | {{ factors.image.A_sum.shape[0] }} | {{ factors.text.A_sum.shape[0] }} |
| outputs d | {{ factors.image.B_sum.shape[0] }} | {{ factors.text.B_sum.shape[0] }} |
| trace of A | {{ trace.image.A }} | {{ trace.text.A }} |
| trace of B | {{ trace.image.B }} | {{ trace.text.B }} |
| prior precision lam ({{ lam_source }}) | {{ "%.6g" % lam.image }} | {{ "%.6g" % lam.text }} |

Pseudo-data count tau = {{ "%.6g" % tau }}; structure {{ structure }}, covariance {{ covariance }},
link {{ link }}; loss {{ loss }}.
{%- if encoder_weights %}
The image projection was fine-tuned; projections.safetensors holds it, and the labelled images count among its pairs.
The rest of the encoder is that of the model named above, whose own projections have sha256
`{{ encoder_weights.float32 }}`.
{%- endif %}
{%- if weights %}
For projections with sha256 `{{ weights.float32 }}`; other weights are refused.
{%- if all_weights %}
All of the encoder's weights together hash to `{{ all_weights.float32 }}`; with others it warns.
{%- endif %}
{%- else %}
Not tied to particular weights: nothing checks that it is used with the model it was estimated for.
{%- endif %}
{% if provenance %}
Provenance:
{% for line in provenance_lines %}
{{ line }}
{%- endfor %}
{% endif %}
```python
from bayesvlm import BayesVLM
vlm = BayesVLM.from_pretrained("path/or/hub-id/of/this/folder")
```
"""


def model_card(config: Mapping[str, Any], factors: Mapping[Tower, KroneckerFactors]) -> str:
    """Render the card from the configuration and the factors that are saved beside it."""
    trace = {tower: {name: f"{float(getattr(factors[tower], name).trace()):.6g}" for name in "AB"} for tower in TOWERS}
    template = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined).from_string(_TEMPLATE)
    lines = list(summary(config["provenance"]))
    return template.render(**config, provenance_lines=lines, factors=factors, trace=trace)
