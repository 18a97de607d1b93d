"""A BayesVLM as a scikit-learn classifier: `fit`, `predict_proba`, `score`, and what scikit-learn does with these."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.core.features import Features
from bayesvlm.core.prediction import Prediction
from bayesvlm.core.settings import Link
from bayesvlm.predicting import Method, check_method
from bayesvlm.prompts import ClassNames, ClassPrompts, Templates
from bayesvlm.serving.estimator_inputs import images_of, pairs_of, table_of
from bayesvlm.vlm import BayesVLM

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import accuracy_score
    from sklearn.utils import Bunch, Tags, check_consistent_length
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise BayesVLMError(
        "BayesianZeroShotClassifier is an estimator of scikit-learn 1.6 or later, which is not installed: "
        f"`pip install 'bayesvlm[sklearn]'` ({error})."
    ) from None

from bayesvlm.serving.estimator_labels import LabelSpace, checked_labels, label_space, named_after


class BayesianZeroShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A vision-language model that classifies images by the names of the classes, with scikit-learn's interface.

    X is a list, array or column of images or paths, an array of images [N, H, W, 3], Features, or a table of
    activations [N, p]. Labels are names, or their numbers in `classes`.

    Args:
        model: a BayesVLM, which is never changed, or what `BayesVLM.from_pretrained` takes; the last model that was
            loaded by name is kept in memory, for the clones that cross-validation makes.
        classes: names, lists of synonyms, or {label: name or synonyms}, whose labels may be of any kind; Features, with
            numbers as labels; None: the labels in `y` are the names.
        templates: prompts with {c} in the place of the name; None: the names are the prompts.
        tune: whether labels in `fit` choose tau.
        method: of `BayesVLM.classify`: "mean" gives the probabilities of the model without a posterior.
        link: from cosines to probabilities: "probit", "centred" or "mc"; None: the model's own setting.
        negatives: size of a contrast batch, where `fit` is given pairs.
        batch_size: images that go through the encoder at once.
        device: None is where the model is, or CUDA where there is one.
        verbose: show progress bars.

    Attributes:
        classes_: labels in the order of the columns [C]; sorted, as scikit-learn's metrics expect. Only names that no
            label in `fit` has asked for stay as they were given.
        model_: the BayesVLM that predicts, with its tau.
        n_features_in_: width of the activations, where X is a table of them.

    Example:
        >>> draw = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        >>> vlm = BayesVLM.from_projections(draw(8, 16), draw(8, 12), logit_scale=2.0)
        >>> classifier = BayesianZeroShotClassifier(vlm, classes=Features(draw(3, 12)))
        >>> classifier.fit([(Features(draw(100, 16)), Features(draw(100, 12)))]).predict_proba(draw(5, 16)).shape
        (5, 3)
    """

    def __init__(
        self,
        model: BayesVLM | str | Path,
        classes: ClassNames | Mapping[Any, str | Sequence[str]] | Features | None = None,
        *,
        templates: Templates | None = None,
        tune: bool = True,
        method: Method = "probcosine",
        link: Link | None = None,
        negatives: int = 32768,
        batch_size: int = 64,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.classes = classes
        self.templates = templates
        self.tune = tune
        self.method = method
        self.link = link
        self.negatives = negatives
        self.batch_size = batch_size
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Get ready to predict; what is learnt on the way depends on what is given.

        `fit()` takes the posterior as the model has it; `fit(X, y)` chooses tau by the labels (with `tune`, a posterior
        that has a tau, and the method that uses it); `fit(pairs)` estimates a posterior from batches of (images,
        texts), as `BayesVLM.fit` does. Images without labels teach nothing. The encoder is never trained.
        """
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit, on a table
            self.__dict__.pop(name, None)
        pairs = None if y is not None else pairs_of(X)
        images = None if X is None or pairs is not None else self._images(X, reset=True)
        labels = None if y is None else checked_labels(y)
        if labels is not None:
            if X is None:
                raise BayesVLMError("There are labels but no images: fit(X, y) takes both, and fit() takes none.")
            check_consistent_length(X, labels)
        space, prompts = self._classes(labels)
        if labels is None and space.unsorted:
            warnings.warn(
                "There are no labels, so the columns of probabilities are in the order of the classes as given; "
                "scikit-learn's tools expect those of names in alphabetical order: pass sorted(classes), or labels.",
                BayesVLMWarning,
                stacklevel=2,
            )
        vlm = self._vlm() if self.link is None else self._vlm().replace(link=self.link)
        if pairs is not None:
            vlm.fit(pairs, self.negatives, progress=self.verbose)
        check_method(vlm, self.method)
        texts = vlm.class_features(prompts, self.templates, progress=self.verbose)
        columns = texts[torch.from_numpy(space.order)]
        if labels is not None:
            self._learn(vlm, images, labels, columns, space)
        self.classes_, self.model_ = space.labels, vlm
        self._space, self._texts = space, columns
        return self

    def prediction(self, X: Any) -> Prediction:
        """All that the model says of every image: the moments of the cosines, `.epistemic`, `.label_probs`."""
        check_is_fitted(
            self,
            "model_",
            msg="This %(name)s is not fitted yet; call fit() to use the model's posterior as it is, fit(X, y) to "
            "choose tau by labels, or fit(pairs) to estimate a posterior.",
        )
        images = self._images(X, reset=False)
        found = self.model_.classify(
            images, self._texts, method=self.method, batch_size=self.batch_size, progress=self.verbose
        )
        return replace(found, classes=tuple(self._space.column_names()))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # [N, C]
        """Probability of every class, in the order of `classes_`."""
        probs = self.prediction(X).probs.detach().double().cpu().numpy()
        return np.asarray(probs / probs.sum(axis=1, keepdims=True))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:  # [N, C]
        """Logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):  # what is beyond float32 is 0
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:  # [N]
        """The most probable label of every image."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(axis=1)])

    def predict_uncertainty(self, X: Any) -> Bunch:
        """What there is to say of the doubt in every prediction: arrays [N], ready for `pandas.DataFrame`.

        `entropy` in nats, its two parts `epistemic` and `aleatoric`, and `std`, the standard deviation of the cosine of
        the predicted class.
        """
        p = self.prediction(X)
        std = p.moments.std.gather(1, p.labels[:, None])[:, 0]
        parts = {"entropy": p.entropy, "epistemic": p.epistemic, "aleatoric": p.aleatoric, "std": std}
        return Bunch(**{name: part.detach().double().cpu().numpy() for name, part in parts.items()})

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; labels may be names or numbers, whichever `predict` returns."""
        predicted, labels = self.predict_proba(X).argmax(axis=1), checked_labels(y)
        true = self._space.columns(labels)
        if (true < 0).all():
            self._space.known(labels)  # which says why
        return float(accuracy_score(true, predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.input_tags.three_d_array = True  # grey images
        tags.input_tags.string = True
        tags.classifier_tags.poor_score = True  # labels say what classes are called, not where they lie
        return tags

    # How -------------------------------------------------------------------------------------------------------------

    def _vlm(self) -> BayesVLM:
        """A BayesVLM of its own, which `fit` may change."""
        if isinstance(self.model, BayesVLM):
            return self.model.copy() if self.device is None else self.model.to(self.device)
        if not isinstance(self.model, str | Path):
            raise BayesVLMError(
                f"model is a {type(self.model).__name__}; expected a BayesVLM, or the name or folder of a model."
            )
        return _loaded(str(self.model), self.device, _stamp(Path(self.model))).copy()

    def _classes(self, labels: NDArray[Any] | None) -> tuple[LabelSpace, Any]:
        """Labels in the order of columns, and the classes as they are to be encoded."""
        classes: Any = self.classes
        if classes is None:
            classes = named_after(labels, self.templates)
        named = classes
        if isinstance(classes, Mapping) and not all(isinstance(key, str) for key in classes):
            named = [[names] if isinstance(names, str) else names for names in classes.values()]
        names = None if isinstance(named, Features) else ClassPrompts.of(named).names
        if len(classes) < 2:
            raise BayesVLMError(
                "There is one class only, so its probability is always 1 and says nothing; name two classes or more."
            )
        return label_space(classes, names, labels), named

    def _learn(self, vlm: BayesVLM, images: Any, y: NDArray[Any], texts: Features, space: LabelSpace) -> None:
        """Choose tau by labels, if there is one to choose."""
        columns = space.known(y)
        tunable = self.tune and self.method == "probcosine" and _has_tau(vlm)
        if not (tunable or space.ambiguous):
            return
        features = vlm.image_features(images, batch_size=self.batch_size, progress=self.verbose)
        if space.seem_encoded(columns, vlm.logits(features, texts).argmax(dim=1).cpu().numpy()):
            raise BayesVLMError(
                "y holds numbers, and the images show that they count the names in alphabetical order, which is how "
                "scikit-learn encodes string labels; pass classes in alphabetical order, too: sorted(classes)."
            )
        if space.ambiguous:
            warnings.warn(
                "y holds numbers and the classes are names out of alphabetical order: the numbers are taken to count "
                "the names as given, but those that cross_val_predict, VotingClassifier or LabelEncoder make of string "
                "labels count them in alphabetical order; pass classes as {number: name} to say which is meant, or "
                "sorted(classes).",
                BayesVLMWarning,
                stacklevel=3,
            )
        if tunable:
            vlm.tune(features, torch.from_numpy(columns), texts, progress=self.verbose)

    def _images(self, X: Any, reset: bool) -> Any:
        """What a BayesVLM takes for X; a table of activations is checked as scikit-learn checks tables."""
        images = images_of(X)
        if images is not None:
            return images
        table = validate_data(self, table_of(X), reset=reset, dtype=[np.float64, np.float32])
        return Features(torch.tensor(table))


@lru_cache(maxsize=1)
def _loaded(name: str, device: str | None, stamp: tuple[Any, ...]) -> BayesVLM:
    """A model by its name; the last one is kept, so that cross-validation loads it once."""
    return BayesVLM.from_pretrained(name, device=device)


def _stamp(folder: Path) -> tuple[Any, ...]:
    """What tells one state of a folder from another; nothing for what is no folder."""
    if not folder.is_dir():
        return ()
    return tuple(sorted((each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in folder.iterdir()))


def _has_tau(vlm: BayesVLM) -> bool:
    distribution = vlm.posterior["image"]
    try:
        distribution.kronecker("There is no tau to tune")
    except BayesVLMError:
        return False
    return True
