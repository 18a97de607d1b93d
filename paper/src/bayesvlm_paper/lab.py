"""Everything an item may ask for, made once and kept: models with posteriors, features of sets and pairs, results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import transformers
from torch import Tensor

import bayesvlm
from bayesvlm import __version__
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid
from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.distortion import Distortion
from bayesvlm.data.labelled import prompts
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.pairs import PairSet
from bayesvlm.data.views import Views
from bayesvlm.evaluation import Outcomes
from bayesvlm.experiments.adaptation import Task
from bayesvlm.experiments.domains import domain_task, find_domains
from bayesvlm.experiments.earlier import Earlier
from bayesvlm.experiments.feature_store import EncodedSet, FeatureStore
from bayesvlm.experiments.methods import METHODS, PREDICTED, SINGLE
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import Result, ZeroShot, model_inputs, place
from bayesvlm.images.files import describe_skipped
from bayesvlm.models import resolve_device
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.timing import machine
from bayesvlm_world.domains import STYLES, world_task

PAIRS = 10 * 32768
"""The most pairs that are taken of a source: the paper's ten contrast batches."""
WORLD_NEGATIVES = 32768

Kept = TypeVar("Kept")


@dataclass
class Lab:
    """One plan, and what it takes to carry it out.

    Args:
        plan: models and data.
        out: where results, posteriors and runs are kept.
        cache: of features.
        root: the folder of the known data sets.
        device: None takes CUDA where there is one.
        views: of an image, for the methods that vote; 0 leaves those out.
        seeds: repeats of what is random.
        say: told what is being done.
        earlier: what is kept there and is made again.
    """

    plan: Plan
    out: Path
    cache: FeatureCache
    root: Path | None = None
    device: str | None = None
    views: int = 64
    seeds: int = 2
    say: Callable[[str], None] = lambda text: None
    earlier: Earlier = field(default_factory=Earlier)
    _kept: dict[Any, Any] = field(default_factory=dict)

    def on(self, plan: Plan) -> Lab:
        """The same lab with another plan; what is loaded is shared."""
        return replace(self, plan=plan)

    # Models ----------------------------------------------------------------------------------------------------------

    @property
    def models(self) -> tuple[str, ...]:
        return self.plan.models

    def vlm(self, name: str) -> BayesVLM:
        """A model with a posterior, or with variances of its own.

        One that has neither is fitted on the plan's first pairs and tuned on its validation set; the posterior is kept.
        """
        return self._once(("vlm", name), lambda: self._ready(name))

    def encoder(self, name: str) -> FeatureStore:
        """A model's encoder, its features kept in the cache."""
        return self._once(("encoder", name), lambda: FeatureStore(self._loaded(name), self.cache))

    def fitted(
        self, name: str, images: Features, texts: Features, *, negatives: int = WORLD_NEGATIVES, tune: bool = True
    ) -> BayesVLM:
        """The model with a posterior from these pairs, tuned on the validation set."""
        vlm = self._loaded(name).without_posterior()
        vlm.fit([(images, texts)], negatives, progress=False)
        if tune:
            self.tuned(name, vlm)
        return vlm

    def tuned(self, name: str, vlm: BayesVLM, taus: tuple[float, ...] = DEFAULT_TAUS, refine: bool = True) -> TauGrid:
        """Find tau on the validation set and set it; every tau tried."""
        found = self.validation(name)
        classes = self.classes(name, self._validation)
        grid = vlm.tune(found.features, found.labels, classes, taus=taus, refine=refine).tuning
        assert grid is not None
        return grid

    # Data ------------------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> tuple[str, ...]:
        return self.plan.sets

    def set(self, name: str) -> LabelledSet:
        """A labelled set."""
        return self._once(("set", name), lambda: resolve(name, root=self.root).open())

    def images(self, model: str, data: str) -> EncodedSet:
        """Features and labels of a set."""
        found = self.encoder(model).images(self.set(data))
        if found.skipped:
            self._once(("skipped", data), lambda: self.say(f"{data}: {describe_skipped(found.skipped)}"))
        return found

    def classes(self, model: str, data: str) -> Features:
        """Features of the prompts of a set."""
        return self.encoder(model).texts(prompts(self.set(data)))

    def validation(self, model: str) -> EncodedSet:
        """Features and labels of the validation set."""
        return self.images(model, self._validation)

    def source(self, number: int = 0) -> str:
        """The name of the plan's pairs."""
        if number >= len(self.plan.pairs):
            what = "the training data" if number == 0 else "the proxy for it"
            raise BayesVLMError(f"This needs image-text pairs ({what}), and none are named; add --pairs SOURCE.")
        return self.plan.pairs[number]

    def pairs(
        self, model: str, source: str | None = None, distortion: Distortion | None = None
    ) -> tuple[Features, Features]:
        """Features of image-text pairs, at most `PAIRS`; None takes the plan's first source."""
        data = self._pair_set(source or self.source())
        return self.encoder(model).pairs(data, PAIRS, distortion)

    def task(self, model: str, target: str) -> Task:
        """Active learning for a target domain."""
        encoder, domains = self.encoder(model), self.plan.domains
        if domains is None:
            raise BayesVLMError(
                "This item chooses from domains, and its plan has none; run an item of active learning."
            )
        if domains == "world":
            return world_task(encoder, target)
        return domain_task(encoder, find_domains(domains), target, root=self.root)

    # Predictions -----------------------------------------------------------------------------------------------------

    def methods(self, model: str) -> tuple[str, ...]:
        """The ways to predict that are compared: those of the paper, with votes where the plan has them."""
        if self.vlm(model).predicts_variance:
            return PREDICTED
        return METHODS if self.plan.views and self.views else SINGLE

    def zero_shot(self, model: str, data: str) -> Result:
        """Every method on a set; kept, and read again where nothing it depends on has changed."""
        methods = self.methods(model)
        run = self._once((f"zero-shot by {methods}", model), lambda: self._zero_shot(model, methods))
        labelled = self.set(data)
        folder = self.kept / ("zero-shot-votes" if run.views else "zero-shot")
        path = place(folder, model, labelled.name)
        try:
            kept = Result.load(path) if path.is_file() and path not in self.earlier else None
        except BayesVLMError:
            kept = None
        if kept is not None and kept.inputs == json.loads(json.dumps(run.inputs(labelled))):
            return kept
        result = run.run(labelled)
        result.save(folder)
        return result

    def bayes(self, model: str, vlm: BayesVLM, data: str) -> Scores:
        """What a posterior's own prediction is worth on a set."""
        found, classes = self.images(model, data), self.classes(model, data)
        parts = [
            Outcomes.of(vlm.classify(found.features[rows], classes).probs, found.labels[rows].to(vlm.device))
            for rows in torch.split(torch.arange(len(found.labels)), 1024)
        ]
        return Scores(Outcomes.concatenate(parts))

    # What it depends on ----------------------------------------------------------------------------------------------

    def inputs(self) -> dict[str, Any]:
        """What findings depend on: weights, posteriors, data, settings, versions.

        Data that cannot be opened count as absent: not every item uses all of its plan, and the one that does will say
        what is missing.
        """
        plan, device = self.plan, resolve_device(self.device)
        labelled = [*plan.sets, *filter(None, [plan.validation]), *self._domain_sets()]
        return {
            "models": {name: model_inputs(self._loaded(name), name, self.encoder(name)) for name in plan.models},
            "data": {name: self._identity("set", name) for name in labelled},
            "pairs": {name: self._identity("pairs", name) for name in plan.pairs},
            "targets": list(plan.targets),
            "views": self.views if plan.views else None,
            "seeds": self.seeds if plan.domains else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "machine": None if plan.models else machine(device),
            "versions": {"bayesvlm": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        }

    def _domain_sets(self) -> tuple[str, ...]:
        if self.plan.domains is None:
            return ()
        return (
            (*STYLES, "train") if self.plan.domains == "world" else tuple(find_domains(self.plan.domains).sets.values())
        )

    def _identity(self, kind: Literal["set", "pairs"], name: str) -> Any:
        """Hashed once; "absent" for what cannot be opened."""

        def hashed() -> Any:
            try:
                if kind == "pairs":
                    return self._pair_set(name).fingerprint()
                return [self.set(name).fingerprint(), *self.set(name).templates]
            except BayesVLMError:
                return "absent"

        return self._once((f"identity of {kind}", name), hashed)

    @property
    def kept(self) -> Path:
        """Where results on the way to a finding are kept: other code has another folder, so none is ever stale."""
        return self.out / "kept" / code_hash()[:12]

    # Inside ----------------------------------------------------------------------------------------------------------

    def _once(self, key: tuple[str, str], make: Callable[[], Kept]) -> Kept:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]

    def _loaded(self, name: str) -> BayesVLM:
        return self._once(("loaded", name), lambda: BayesVLM.from_pretrained(name, device=self.device))

    def _ready(self, name: str) -> BayesVLM:
        vlm = self._loaded(name)
        if vlm.fitted:
            return vlm
        folder = place(self.kept / "posteriors", name, "posterior").with_suffix("")
        made_from = {
            "source": self.source(),
            "pairs_fingerprint": self.encoder(name).fingerprint(self._pair_set(self.source())),
            "tuned_on": self._validation,
            "tuned_on_fingerprint": self.encoder(name).fingerprint(self.set(self._validation)),
        }
        with suppress(BayesVLMError):  # damaged, or of other weights: fitted again
            if folder.is_dir() and folder / "config.json" not in self.earlier:
                kept = BayesVLM.from_pretrained(folder, model=name, device=self.device)
                if made_from.items() <= kept.provenance.items():
                    return kept
        self.say(f"fit       {name} on {self.source()}, then tau on {self._validation}")
        fitted = vlm.without_posterior()  # a copy: what a finding depends on is the model as it came
        fitted.fit([self.pairs(name)], provenance=made_from)
        self.tuned(name, fitted)
        fitted.save_pretrained(folder)
        return fitted

    @property
    def _validation(self) -> str:
        if self.plan.validation is None:
            raise BayesVLMError("This needs a labelled set to tune on; name one with --validation.")
        return self.plan.validation

    def _pair_set(self, source: str) -> PairSet:
        return self._once(("pairs", source), lambda: resolve(source, "pairs", self.root).open())

    def _zero_shot(self, model: str, methods: tuple[str, ...]) -> ZeroShot:
        return ZeroShot(
            self.vlm(model),
            model,
            methods=methods,
            validation=self.set(self._validation) if "temperature" in methods else None,
            views=Views(self.views) if self.views else None,
            encoder=self.encoder(model),
        )


@cache
def code_hash() -> str:
    """Of everything here that decides a number: features know what they were made with themselves."""
    package = Path(bayesvlm.__file__).parent
    files = [package / name for name in ("vlm.py", "fitting.py")]
    files += [package / "data" / name for name in ("distortion.py", "views.py", "labelled/known.py")]
    for room in ("active", "core", "evaluation", "experiments"):
        files += sorted(path for path in (package / room).rglob("*") if path.suffix in (".py", ".json"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def shuffled(count: int, seed: int) -> Tensor:  # [count]
    """Row numbers in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
