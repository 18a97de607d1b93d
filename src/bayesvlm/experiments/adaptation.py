"""The paper's second question: does the posterior know what to label? Choose, fine-tune, measure.

The mathematics: docs/active.md.

Every strategy, seed and budget is one point of a curve. A run (a strategy with a seed) is one json file that names
everything it was made from; a run that is there already is not done again, so an interrupted experiment goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm import __version__
from bayesvlm.active import STRATEGIES, Epig, Strategy, finetune, rank
from bayesvlm.active.targeting import Metric
from bayesvlm.artifacts.files import write_together
from bayesvlm.artifacts.weights import weight_hashes
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.data.cache import tensor_fingerprint
from bayesvlm.evaluation import Estimate, Outcomes, accuracy, balanced_accuracy, ece, nlpd
from bayesvlm.experiments.earlier import Earlier
from bayesvlm.predicting import Method
from bayesvlm.progress import progress_bar
from bayesvlm.vlm import BayesVLM

SCHEMA = 3
DRAWS = 2  # raised when a seed comes to mean other draws to EPIG, so that runs kept before are made anew
BUDGETS = (10, 25, 50, 75, 100, 150, 200)
GAMMAS, BETAS = (1e-5, 1e-4, 1e-3, 1e-2), (1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images as the tower sees them, and what they show."""

    features: Features  # [N]
    labels: Tensor  # [N]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise BayesVLMError(
                f"There are {len(self.features)} images and {len(self.labels)} labels; give one label per image."
            )

    def __len__(self) -> int:
        return len(self.features)

    @staticmethod
    def concatenate(parts: Sequence[Labelled]) -> Labelled:
        """One after the other."""
        features = Features.concatenate([part.features for part in parts])
        return Labelled(features, torch.cat([part.labels for part in parts]))


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learnt: a pool of mixed domains to label from, and the target to become good at.

    Args:
        name: what it is called.
        pool: what may be labelled; its labels are the oracle's.
        target: what is measured; its labels are used for nothing else.
        validation: picks the epoch, and the hyperparameters.
        classes: prompts, as Features, [C].
        domains: where each pool item comes from, to tell what was chosen; may be empty.
        skipped: images that could not be read, and why.
    """

    name: str
    pool: Labelled
    target: Labelled
    validation: Labelled
    classes: Features
    domains: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """Of all features, labels and domains."""
        tensors = _named("classes", self.classes)
        for name, part in {"pool": self.pool, "target": self.target, "validation": self.validation}.items():
            tensors += [*_named(name, part.features), (f"{name}.labels", part.labels)]
        digest = hashlib.sha256(tensor_fingerprint(tensors).encode())
        digest.update(json.dumps(self.domains).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Schedule:
    """How the experiment is done. Budgets, epochs, batch and weight decay are the paper's; its lr is 1e-5."""

    strategies: tuple[Strategy, ...] = STRATEGIES
    budgets: tuple[int, ...] = BUDGETS
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    draws: int = 100
    metric: Metric = "cosine"
    epig: Epig = field(default_factory=Epig)
    lr: float = 1e-4
    epochs: int = 100
    batch: int = 32
    weight_decay: float = 5e-2


@dataclass(frozen=True)
class Run:
    """One strategy with one seed.

    Args:
        picks: indices into the pool, in order.
        points: budget -> scores on the target after fine-tuning on that many; 0 is the model as it came. Figures are of
            the Bayesian prediction; `plain_nlpd` is that of the mean weights alone, `validation_nlpd` is not of the
            target.
        domains: how many of the picks come from where.
    """

    strategy: str
    seed: int
    picks: list[int]
    points: Mapping[int, Mapping[str, float]]
    domains: Mapping[str, int]
    seconds: Mapping[str, float]


class Adaptation:
    """One model and one task, under one schedule.

    Args:
        vlm: a fitted model.
        out: where runs are kept; None keeps none.
        earlier: kept runs that are done again.
    """

    def __init__(
        self,
        vlm: BayesVLM,
        task: Task,
        schedule: Schedule | None = None,
        out: Path | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.vlm, self.task, self.schedule, self.out = vlm, task, schedule or Schedule(), out
        self.earlier = earlier or Earlier()
        largest = max(self.schedule.budgets)
        if largest > len(task.pool):
            raise BayesVLMError(
                f"The largest budget is {largest} and the pool of {task.name} has {len(task.pool)} images; take "
                "smaller budgets or a larger pool."
            )

    def run(self, progress: bool | None = None) -> list[Run]:
        """Every strategy with every seed; those that are there already are read."""
        wanted = list(product(self.schedule.strategies, self.schedule.seeds))
        runs = []
        with progress_bar(f"adapting to {self.task.name}", total=len(wanted), unit="runs", show=progress) as advance:
            for strategy, seed in wanted:
                found = self._read(strategy, seed)
                if found is None:
                    found = self._run(strategy, seed)
                    self._write(found)
                runs.append(found)
                advance(1)
        return runs

    def search(self, budget: int = 50, seed: int = 0, progress: bool | None = None) -> dict[tuple[float, float], float]:
        """Validation NLPD after EPIG with every gamma and beta of the paper's grid; kept as other runs are.

        With fewer labels than `budget` where the schedule's largest is smaller.
        """
        found = {}
        budget = min(budget, max(self.schedule.budgets))
        pairs = list(product(GAMMAS, BETAS))
        with progress_bar("searching gamma and beta", total=len(pairs), unit="pairs", show=progress) as advance:
            for gamma, beta in pairs:
                options = replace(self.schedule.epig, gamma=gamma, beta=beta)
                schedule = replace(self.schedule, strategies=("epig",), budgets=(budget,), seeds=(seed,), epig=options)
                (run,) = Adaptation(self.vlm, self.task, schedule, self.out, self.earlier).run(progress=False)
                found[gamma, beta] = run.points[budget]["validation_nlpd"]
                advance(1)
        return found

    def before_and_after(self, runs: Sequence[Run], strategy: str = "epig") -> dict[str, Outcomes]:
        """What the answers on the target look like as the model came, and after the strategy's first run.

        The strategy that is not among the runs gives way to the last one that is.
        """
        named = [run for run in runs if run.strategy == strategy] or list(runs[-1:])
        after = f"after {len(named[0].picks)} labels by {named[0].strategy}"
        both = {"before": self.vlm, after: self.adapted(named[0])}
        return {name: self.answers(vlm) for name, vlm in both.items()}

    def adapted(self, run: Run, method: Method = "probcosine") -> BayesVLM:
        """The model fine-tuned on all that a run chose, of the epoch at which `method` predicts best."""
        return self._finetune(run.picks, run.seed, method)

    def answers(self, vlm: BayesVLM, method: Method = "probcosine") -> Outcomes:
        """What a model says of the target."""
        target = self.task.target
        probs = vlm.classify(target.features, self.task.classes, method=method).probs
        return Outcomes.of(probs.cpu(), target.labels)

    # One run ---------------------------------------------------------------------------------------------------------

    def _run(self, strategy: Strategy, seed: int) -> Run:
        picks, seconds = self._choose(strategy, seed, max(self.schedule.budgets), self.schedule.epig)
        points = {0: self._scores(self.vlm)}
        for budget in self.schedule.budgets:
            points[budget] = self._scores(self._finetune(picks[:budget], seed))
        domains = Counter(self.task.domains[pick] for pick in picks) if self.task.domains else {}
        return Run(strategy, seed, picks, points, dict(domains), seconds)

    def _choose(self, strategy: Strategy, seed: int, budget: int, options: Epig) -> tuple[list[int], dict[str, float]]:
        task, schedule = self.task, self.schedule
        chosen = rank(
            self.vlm,
            task.pool.features,
            task.target.features,
            task.classes,
            strategy,
            budget,
            task.pool.labels,
            seed,
            draws=schedule.draws,
            metric=schedule.metric,
            options=options,
            progress=False,
        )
        return chosen.indices.tolist(), chosen.seconds

    def _finetune(self, picks: Sequence[int], seed: int, method: Method = "probcosine") -> BayesVLM:
        task, schedule = self.task, self.schedule
        rows = torch.tensor(picks)
        return finetune(
            self.vlm,
            task.pool.features[rows],
            task.pool.labels[rows],
            task.classes,
            (task.validation.features, task.validation.labels),
            schedule.lr,
            seed,
            epochs=schedule.epochs,
            batch=schedule.batch,
            weight_decay=schedule.weight_decay,
            method=method,
        )

    def _scores(self, vlm: BayesVLM) -> dict[str, float]:
        target, held, classes = self.task.target, self.task.validation, self.task.classes
        probs = vlm.classify(target.features, classes).probs.cpu()
        plain = vlm.plain(target.features, classes).cpu()
        return {
            "balanced_accuracy": float(balanced_accuracy(probs, target.labels)),
            "accuracy": accuracy(probs, target.labels).value,
            "nlpd": nlpd(probs, target.labels).value,
            "ece": float(ece(probs, target.labels)),
            "plain_nlpd": nlpd(plain, target.labels).value,
            "validation_nlpd": nlpd(vlm.classify(held.features, classes).probs.cpu(), held.labels).value,
        }

    # Keeping runs ----------------------------------------------------------------------------------------------------

    def inputs(self, strategy: str) -> dict[str, Any]:
        """What a run depends on beside its seed; two runs with equal inputs and seed are equal."""
        schedule = asdict(self.schedule)
        kept = {name: schedule[name] for name in schedule if name not in ("strategies", "seeds", "epig")}
        kept |= {"epig": schedule["epig"], "kind of draws": DRAWS} if strategy == "epig" else {}
        return json.loads(json.dumps({**self._model, "protocol": kept}))  # type: ignore[no-any-return]

    @cached_property
    def _model(self) -> dict[str, Any]:
        factors = self.vlm.factors
        sums = [(f"{tower}.{name}", getattr(of, f"{name}_sum")) for tower, of in factors.items() for name in "AB"]
        return {
            "projections": weight_hashes(self.vlm.image, self.vlm.text)["float32"],
            "posterior": {
                "factors": tensor_fingerprint(sums),
                "pairs": {tower: of.n for tower, of in factors.items()},
                **asdict(self.vlm.settings),
            },
            "scale": self.vlm.scale,
            "loss": [self.vlm.loss, self.vlm.logit_bias, self.vlm.normalise],
            "versions": {"bayesvlm": __version__, "torch": torch.__version__},
            "task": {"name": self.task.name, "fingerprint": self.task.fingerprint},
        }

    def _place(self, strategy: str, seed: int) -> Path | None:
        """Named by what it was made from too: another model, task or schedule does not replace it."""
        if self.out is None:
            return None
        identity = hashlib.sha256(json.dumps(self.inputs(strategy), sort_keys=True).encode()).hexdigest()
        return self.out / f"{strategy}-{seed}-{identity[:12]}.json"

    def _read(self, strategy: str, seed: int) -> Run | None:
        """A run that was made from the same inputs, if there is one."""
        path = self._place(strategy, seed)
        if path is None or not path.is_file() or path in self.earlier:
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["schema"] != SCHEMA or kept["inputs"] != self.inputs(strategy):
                return None
            points = {int(budget): scores for budget, scores in kept["points"].items()}
            return Run(strategy, seed, kept["picks"], points, kept["domains"], kept["seconds"])
        except (ValueError, KeyError, TypeError):
            return None

    def _write(self, run: Run) -> None:
        path = self._place(run.strategy, run.seed)
        if path is None:
            return
        content = {"schema": SCHEMA, "inputs": self.inputs(run.strategy), **asdict(run)}
        write_together(path.parent, {path.name: (json.dumps(content, indent=2) + "\n").encode()})


def _named(name: str, features: Features) -> list[tuple[str, Tensor]]:
    return [(f"{name}.{part}", value) for part, value in features.tensors().items()]


# What the runs say ----------------------------------------------------------------------------------------------------


def curves(runs: Sequence[Run], metric: str = "nlpd") -> dict[str, dict[int, Estimate]]:
    """Strategy -> budget -> mean over the seeds with its standard error."""
    found: dict[str, dict[int, Estimate]] = {}
    for strategy in dict.fromkeys(run.strategy for run in runs):
        own = [run for run in runs if run.strategy == strategy]
        budgets = sorted(own[0].points)
        found[strategy] = {
            budget: Estimate.of(torch.tensor([run.points[budget][metric] for run in own], dtype=torch.float64))
            for budget in budgets
        }
    return found


def advantage(runs: Sequence[Run], strategy: str, over: str, budget: int, metric: str = "nlpd") -> Estimate:
    """How much lower `strategy` is than `over` in a metric, paired by seed: mean and standard error."""
    found: dict[str, dict[int, float]] = {strategy: {}, over: {}}
    for run in runs:
        if run.strategy in found:
            found[run.strategy][run.seed] = run.points[budget][metric]
    seeds = sorted(found[strategy].keys() & found[over].keys())
    if not seeds:
        raise BayesVLMError(f"{strategy} and {over} have no seed in common; run both with the same seeds.")
    gaps = [found[over][seed] - found[strategy][seed] for seed in seeds]
    return Estimate.of(torch.tensor(gaps, dtype=torch.float64))
