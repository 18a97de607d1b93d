"""Everything an item may ask for, made once and kept: models with posteriors, features of sets and pairs, results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesvlm.artifacts import SavedPosterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid
from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.distortion import Distortion
from bayesvlm.data.labelled import set_prompts
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
from bayesvlm.experiments.zero_shot import Result, ZeroShot, place
from bayesvlm.images.files import describe_skipped
from bayesvlm.models import resolve_device
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.inputs import digest_of, model_identity, versions
from bayesvlm_paper.plans import PAIRS, Plan
from bayesvlm_paper.timing import machine
from bayesvlm_world.domains import STYLES, world_task

FITTING = 1
"""Version of how posteriors are fitted and tuned here: raised when the same inputs come to give others."""

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
    _made: dict[Any, Any] = field(default_factory=dict)

    def on(self, plan: Plan) -> Lab:
        """The same lab with another plan; what is loaded is shared."""
        return replace(self, plan=plan)

    # Models ----------------------------------------------------------------------------------------------------------

    @property
    def models(self) -> tuple[str, ...]:
        return self.plan.models

    def loaded(self, name: str) -> BayesVLM:
        """A model as it comes, with a posterior or without."""
        return self._once(("loaded", name), lambda: BayesVLM.from_pretrained(name, device=self.device))

    def vlm(self, name: str) -> BayesVLM:
        """A model with a posterior, or with variances of its own; one with neither is fitted on the plan's pairs."""
        vlm = self.loaded(name)
        return vlm if vlm.fitted else self.fitted(name)

    def encoder(self, name: str) -> FeatureStore:
        """A model's encoder, its features kept in the cache."""
        return self._once(("encoder", name), lambda: FeatureStore(self.loaded(name), self.cache))

    def fitted(self, name: str, source: str | None = None, distortion: Distortion | None = None) -> BayesVLM:
        """The model with a posterior from pairs, tuned on the validation set; kept for all items.

        Args:
            source: of the pairs; None takes the plan's first.
            distortion: what is done to every image of the pairs.
        """
        source = source or self.source()
        done = "" if distortion is None else f", {distortion.kind}-{distortion.level:g}"
        key = ("fitted", name, source, done, self.validation_set)
        return self._once(key, lambda: self._fitted(name, source, distortion, done))

    def fitted_on(self, name: str, images: Features, texts: Features, made_from: dict[str, Any]) -> BayesVLM:
        """The model with a posterior from these pairs, tuned on the validation set; not kept."""
        vlm = self.loaded(name).without_posterior()
        vlm.fit([(images, texts)], progress=False, provenance=made_from)
        return self.tuned(name, vlm)[0]

    def tuned(
        self, name: str, vlm: BayesVLM, taus: tuple[float, ...] = DEFAULT_TAUS, refine: bool = True
    ) -> tuple[BayesVLM, TauGrid]:
        """A copy with the tau that is best on the validation set, and every tau tried."""
        found, classes, own = self.validation(name), self.classes(name, self.validation_set), vlm.copy()
        grid = own.tune(found.features, found.labels, classes, taus=taus, refine=refine).tuning
        assert grid is not None
        return own, grid

    # Data ------------------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> tuple[str, ...]:
        return self.plan.sets

    @property
    def validation_set(self) -> str:
        """The name of the labelled set to tune on."""
        if self.plan.validation is None:
            raise BayesVLMError("This needs a labelled set to tune on; name one with --validation.")
        return self.plan.validation

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
        return self.encoder(model).classes(set_prompts(self.set(data)))

    def validation(self, model: str) -> EncodedSet:
        """Features and labels of the validation set."""
        return self.images(model, self.validation_set)

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
        return self.encoder(model).pairs(self._pair_set(source or self.source()), PAIRS, distortion)

    def task(self, model: str, target: str) -> Task:
        """Active learning for a target domain."""
        encoder, domains = self.encoder(model), self.plan.domains
        if domains is None:
            raise BayesVLMError("This item chooses from domains, its plan has none; run an item of active learning.")
        if domains == "world":
            return world_task(encoder, target)
        return domain_task(encoder, find_domains(domains), target, root=self.root)

    # Predictions -----------------------------------------------------------------------------------------------------

    def methods(self, model: str) -> tuple[str, ...]:
        """The ways to predict that are compared: those of the paper, with votes where the plan has them."""
        if self.vlm(model).predicts_variance:
            return PREDICTED
        methods = METHODS if self.plan.views and self.views else SINGLE
        return tuple(method for method in methods if method != "raised temperature")

    def zero_shot(self, model: str, data: str) -> Result:
        """Every method on a set; kept, and read again where nothing it depends on has changed."""
        methods = self.methods(model)
        run = self._once(("zero-shot", model, methods), lambda: self._zero_shot(model, methods))
        labelled = self.set(data)
        folder = self.kept / ("zero-shot-votes" if run.views else "zero-shot")
        path = place(folder, model, labelled.name)
        with suppress(BayesVLMError):  # damaged: measured again
            if path.is_file() and path not in self.earlier:
                kept = Result.load(path)
                if kept.inputs == json.loads(json.dumps(run.inputs(labelled))):
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
        """What numbers that are measured here depend on, as `bayesvlm_paper.inputs` declares; loads no model.

        Data that cannot be opened count as absent: not every item uses all of its plan, and the one that does will say
        what is missing.
        """
        plan, device = self.plan, resolve_device(self.device)
        labelled = [*plan.sets, *filter(None, [plan.validation]), *self.domain_sets]
        return {
            "models": {name: model_identity(name) for name in plan.models},
            "data": {name: self._data_identity(name) for name in labelled},
            "pairs": {name: self._pairs_identity(name) for name in plan.pairs},
            "domains": plan.domains,
            "targets": list(plan.targets),
            "views": self.views if plan.views else None,
            "seeds": self.seeds if plan.domains else None,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "machine": None if plan.models else machine(device),
            "versions": versions(),
        }

    @property
    def kept(self) -> Path:
        """Where results on the way to an item's numbers are kept, each with the inputs it was made from."""
        return self.out / "kept"

    @property
    def domain_sets(self) -> tuple[str, ...]:
        """The sets of the domains that are chosen from, their names."""
        domains = self.plan.domains
        if domains is None:
            return ()
        return (*STYLES, "train") if domains == "world" else tuple(find_domains(domains).sets.values())

    def _data_identity(self, name: str) -> list[str] | None:
        with suppress(BayesVLMError):
            data = self.set(name)
            return self._once(("identity", name), lambda: [data.fingerprint(), data.templates[0]])
        return None

    def _pairs_identity(self, name: str) -> str | None:
        with suppress(BayesVLMError):
            return self._once(("identity of pairs", name), lambda: self._pair_set(name).fingerprint())
        return None

    # Inside ----------------------------------------------------------------------------------------------------------

    def _once(self, key: tuple[Any, ...], make: Callable[[], Kept]) -> Kept:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]

    def _fitted(self, name: str, source: str, distortion: Distortion | None, done: str) -> BayesVLM:
        """Read where it was made from the same inputs, else made."""
        inputs = {
            "version": FITTING,
            "model": model_identity(name).get("model", name),
            "pairs": self._pairs_identity(source),
            "distortion": None if distortion is None else asdict(distortion),
            "validation": self._data_identity(self.validation_set),
            "device": resolve_device(self.device).type,
            "versions": versions(),
        }
        made_from = {"source": source + done, "tuned_on": self.validation_set, "inputs": digest_of(inputs)}
        folder = place(self.kept / "posteriors", name, source + done).with_suffix("")
        with suppress(BayesVLMError):  # there is none, it is damaged, or of other weights
            if folder / "config.json" not in self.earlier:
                kept = SavedPosterior.load(folder)
                if kept.config.provenance.get("inputs") == made_from["inputs"]:
                    return self.loaded(name).without_posterior().with_posterior(kept)
        self.say(f"fit       {name} on {source}{done}, then tau on {self.validation_set}")
        vlm = self.fitted_on(name, *self.pairs(name, source, distortion), made_from)
        vlm.save_pretrained(folder)
        return vlm

    def _pair_set(self, source: str) -> PairSet:
        return self._once(("pairs", source), lambda: resolve(source, "pairs", self.root).open())

    def _zero_shot(self, model: str, methods: tuple[str, ...]) -> ZeroShot:
        return ZeroShot(
            self.vlm(model),
            model,
            methods=methods,
            validation=self.set(self.validation_set) if "temperature" in methods else None,
            views=Views(self.views) if self.views else None,
            encoder=self.encoder(model),
        )


def shuffled(count: int, seed: int) -> Tensor:  # [count]
    """Row numbers in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
