"""What the tabs compute, without a page: the library's numbers, and HTML that nobody's text can break."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm.app import described, found
from bayesvlm.app.ask import Asker, answer_html
from bayesvlm.app.broken import Damage, destroy, way_html
from bayesvlm.app.described import describe, description_html
from bayesvlm.app.desk import Desk
from bayesvlm.app.drawings import CLASSES, LISTS, drawings, examples, of_classes, undrawn
from bayesvlm.app.found import hits_html
from bayesvlm.app.labelling import STRATEGIES, labelling_html
from bayesvlm.app.markup import alert
from bayesvlm.app.models import Models
from bayesvlm.app.uploads import Picture, picture_of
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.embedded import MODELS

NASTY = "<script>alert('x')</script>\"&"


class _Elements(HTMLParser):
    """Which elements there are, and which attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found |= {tag, *(name for name, _ in attrs if name.startswith("on"))}


def _example(place: int) -> Picture:
    return picture_of(examples()[place].image, examples()[place].title)


def test_an_answer_is_the_librarys(desk: Any) -> None:
    vlm, shown = desk.models("emoji-clip").vlm, _example(0)
    answer = Asker(desk.models("emoji-clip"))(shown, CLASSES)
    expected = vlm.classify(examples()[0].image, list(CLASSES))
    assert [row.name for row in answer.rows] == list(expected.topk(len(CLASSES)).names[0])
    assert torch.tensor([row.prob for row in answer.rows]).sum().item() == pytest.approx(1)
    by_name = {row.name: row for row in answer.rows}
    low, high = expected.moments.interval(0.95)
    for k, name in enumerate(CLASSES):
        assert by_name[name].mean == pytest.approx(float(expected.mean[0, k]), abs=1e-5)
        assert by_name[name].low == pytest.approx(float(low[0, k]), abs=1e-5)
        assert by_name[name].high == pytest.approx(float(high[0, k]), abs=1e-5)
    assert answer.epistemic + answer.aleatoric == pytest.approx(answer.entropy, abs=1e-6)


def test_names_without_drawings_are_answered_without_a_calibration(desk: Any) -> None:
    answer = Asker(desk.models("emoji-clip"))(_example(0), ("a tiny red thing", NASTY))
    assert answer.p_value is None
    assert answer.named is None
    html = answer_html(answer, replace(_example(0), title=NASTY))
    assert "No p-value and no set can be promised, since there are no drawings of these names" in html
    assert "The probabilities stand." in html
    assert "Leave" not in html  # nobody is told to leave out all of their names
    assert "script" not in _Elements(html).found


def test_few_drawings_are_too_few_and_the_library_says_so(desk: Any) -> None:
    names = ("cat face", "pizza")
    answer = Asker(desk.models("emoji-clip"))(_example(0), names)
    assert 0 < len(of_classes(names)) < 19
    html = answer_html(answer, _example(0)).replace("\u00a0", " ")
    assert f"There are {len(of_classes(names))} drawings of these names to calibrate on" in html
    assert "a p-value at 5 % needs 19: more names of those on the lists" in html
    assert "give more" not in html


@pytest.mark.parametrize("added", ["quantum physics", "dog face"])
def test_nothing_is_promised_of_names_that_were_not_all_drawn(desk: Any, added: str) -> None:
    """A p-value of drawings of the other names would say nothing of this one, and neither would a set."""
    names = (*CLASSES, added)
    assert undrawn(names) == [added]
    answer = Asker(desk.models("emoji-clip"))(_example(0), names)
    assert answer.p_value is None
    assert answer.unknown is None
    assert answer.named is None
    html = answer_html(answer, _example(0))
    assert f"drawings of {len(CLASSES)} of the {len(CLASSES) + 1} names to calibrate on, and none of {added}." in html
    assert "drawings of these names look" not in html


def test_every_list_to_begin_with_is_calibrated(desk: Any) -> None:
    for names in LISTS.values():
        assert not undrawn(names)
        answer = Asker(desk.models("emoji-clip"))(_example(0), names)
        assert answer.p_value is not None
        assert answer.named is not None


def test_drawings_to_calibrate_on_are_not_the_examples_and_not_those_that_tuned_tau() -> None:
    shown = {each.key for each in examples()}
    for names in LISTS.values():
        familiar = of_classes(names)
        assert len(familiar) >= 19
        assert not shown & {each.key for each in familiar}
        assert "validation" not in {each.split for each in familiar}


@pytest.mark.parametrize("kind", ["blur", "occlusion", "letters"])
def test_what_is_destroyed_has_a_larger_variance(desk: Any, kind: str) -> None:
    """Of drawings on average: not of each one at each step."""
    ratios = []
    for drawing in drawings("openmoji-colour")[::150]:
        way = destroy(
            desk.models("emoji-clip"), picture_of(drawing.image, ""), drawing.name, CLASSES, Damage(**{kind: 0.8})
        )
        ratios.append(way.steps[-1].variance / way.steps[0].variance)
    assert sum(ratios) / len(ratios) > 1.05


def test_the_way_begins_intact_and_ends_where_the_sliders_are(desk: Any) -> None:
    vlm, shown, damage = desk.models("emoji-clip").vlm, _example(1), Damage(0.2, 0.3, 0.4, 0.5)
    way = destroy(desk.models("emoji-clip"), shown, "pizza", CLASSES, damage)
    assert way.steps[0].text == "pizza"
    for step, picture in ((way.steps[0], shown.image), (way.steps[-1], way.image)):
        moments = vlm.similarity(picture, step.text)
        assert step.mean == pytest.approx(float(moments.mean[0, 0]), abs=1e-5)
        assert step.variance == pytest.approx(float(moments.variance[0, 0]), rel=1e-3)
    assert "script" not in _Elements(way_html(destroy(desk.models("emoji-clip"), shown, NASTY, CLASSES, damage))).found
    with pytest.raises(BayesVLMError, match="blur is 2"):
        Damage(blur=2)


def test_hits_are_the_indexs(desk: Any) -> None:
    collection = desk.collection("emoji-clip")
    hits = collection.search("winking face", 3)
    expected = collection.index.vlm.similarity(
        [each.image for each in drawings("validation") if each.key == hits[0].id], "winking face"
    )
    assert hits[0].mean == pytest.approx(float(expected.mean), abs=1e-3)
    assert hits[0].std == pytest.approx(float(expected.std), abs=1e-3)
    html = hits_html(replace(hits, query=NASTY), collection)
    assert not {"script", "onerror"} & _Elements(html).found
    assert "Nothing here matches" in hits_html(replace(hits, matches=False), collection)
    assert "searched by emoji-clip;" in html


def test_a_picture_is_called_by_its_name_and_nothing_is_said_of_queries_in_words(desk: Any) -> None:
    collection = desk.collection("emoji-clip")
    like = collection.search(replace(_example(0), title="my cat.png"), 4)
    assert len(like) == 4
    assert like.p_value is None
    html = hits_html(like, collection)
    assert "“<bdi>my cat.png</bdi>”" in html
    assert "image 0" not in html
    assert "turned away" not in html
    assert "a picture is always answered" in html
    assert "turned away" in hits_html(collection.search("winking face", 3), collection)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(MODELS, device="cpu")


@pytest.fixture
def every(models: Models, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Every embedded model at a desk where little is searched and measured, so that all tabs open in seconds."""
    pytest.importorskip("lancedb", reason="the tab Search needs LanceDB: pip install 'bayesvlm[retrieval]'")
    monkeypatch.setattr(found, "drawings", lambda split: drawings(split)[::12])
    monkeypatch.setattr(described, "drawings", lambda split: drawings(split)[::25])
    return Desk(models)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_opens_on_every_tab_or_a_sentence_says_why_not(
    every: Desk, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened, shown = every.models(name), _example(0)
    plain = {"emoji-siglip": "plain SigLIP", "emoji-prolip": "without variances"}.get(name, "plain CLIP")
    answer = answer_html(every.asker(name)(shown, CLASSES), shown)
    assert "p = " in answer
    texts = [answer, description_html(every.description(name))]
    assert all(plain in text for text in texts)
    assert "data-variance" in way_html(destroy(opened, shown, "cat", CLASSES, Damage(0.5)))
    if opened.vlm.predicts_variance:
        assert all("posterior" not in text and "CLIP" not in text for text in texts)
        for make in (every.collection, every.labeller):
            with pytest.raises(BayesVLMError, match=f"{name} predicts .*open another model on the tab Model"):
                make(name)
        assert not list(tmp_path.iterdir())  # no folder is left of an index that could not be made
        return
    assert "cards" in hits_html(every.collection(name).search("cat", 3), every.collection(name))
    labeller = every.labeller(name)
    assert "2 labelled" in labelling_html(labeller.go_on(labeller.begin(next(iter(STRATEGIES))), 2), labeller)


def test_an_index_of_ones_own_says_which_model_searches_it(every: Desk, tmp_path: Path) -> None:
    """It is not the one that a visitor chose."""
    from bayesvlm.retrieval import Index

    few = drawings("validation")[:5]
    index = Index.create(tmp_path / "index", every.models("emoji-clip").vlm)
    index.add([each.image for each in few], [each.key for each in few], progress=False)
    given = Desk(every.models, tmp_path / "index", "cpu").collection("emoji-siglip")
    html = hits_html(given.search("cat", 2), given)
    assert "searched by emoji-clip with the posterior in that index, whichever model is chosen on the tab Model" in html


def test_an_index_that_fails_half_made_leaves_no_folder(
    every: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(found, "drawings", lambda split: drawings(split)[:5])  # too few to calibrate on
    with pytest.raises(BayesVLMError):
        found.of_world(every.models("emoji-clip"))
    assert not list(tmp_path.iterdir())


def test_labels_are_chosen_once_and_the_curve_is_the_librarys(desk: Any) -> None:
    labeller = desk.labeller("emoji-clip")
    for strategy in STRATEGIES:
        first = labeller.go_on(labeller.begin(strategy), 4)
        both = labeller.go_on(first, 3)
        rows = [pick.row for pick in both.picks]
        assert len(set(rows)) == 7
        assert not set(rows) & set(labeller.task.validation.tolist())
        assert [point.labels for point in both.points] == [0, 4, 7]
        assert "svg" in _Elements(labelling_html(both, labeller)).found
    taught, task = labeller.taught(rows), labeller.task
    probs = taught.classify(task.target, task.classes).probs
    mine = -probs[torch.arange(len(probs)), task.target_labels].log().mean()
    assert both.points[-1].nlpd == pytest.approx(float(mine), rel=1e-4)
    with pytest.raises(BayesVLMError, match="start again"):
        labeller.go_on(both, 100)
    assert not both.over
    many = replace(both, picks=both.picks * 14)
    assert many.over
    assert "which is enough here; start again" in labelling_html(many, labeller)
    assert "svg" in _Elements(labelling_html(many, labeller)).found  # what was reached stays


def test_what_a_choice_is_for_is_said_in_words(desk: Any) -> None:
    labeller, why = desk.labeller("emoji-clip"), {}
    for strategy in STRATEGIES:
        first = labeller.go_on(labeller.begin(strategy), 2)
        html = labelling_html(first, labeller)
        assert "score" not in html
        assert "± " in html
        assert "curves whose bars overlap tell no difference" in html
        why[strategy.partition(":")[0]] = html
    assert "nats of doubt off a target drawing" in why["EPIG"]
    assert "the answer to it has" in why["entropy"]
    assert "it is like a target drawing whose answer has" in why["near the target's doubtful ones"]
    assert "chosen by chance" in why["at random"]


def test_a_name_from_right_to_left_turns_nothing_around(desk: Any) -> None:
    names = ("שלום", "dog", "pizza")
    html = answer_html(Asker(desk.models("emoji-clip"))(_example(0), names), _example(0))
    assert html.count("<bdi>שלום</bdi>") >= 1
    assert html.count("שלום") == html.count("<bdi>שלום</bdi>") + html.count("none of שלום")


def test_the_page_opens_with_what_looks_familiar_and_the_unfamiliar_is_a_press_away(desk: Any) -> None:
    answers = {
        each.name: Asker(desk.models("emoji-clip"))(_example(place), CLASSES) for place, each in enumerate(examples())
    }
    assert answers["dog"].unknown is False
    assert answers["dog"].rows[0].name == "dog"
    assert answers["sailboat"].unknown is True
    assert "sailboat" not in CLASSES
    assert answers["cat face"].unknown is True  # a false alarm, which a sentence explains
    assert "a false alarm" in answer_html(answers["cat face"], _example(2))


def test_a_description_measures_every_drawing_of_the_split(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a part of it, which may be easier or harder than the whole."""
    from bayesvlm.embedded import world
    from bayesvlm.evaluation import accuracy, ece, nlpd

    monkeypatch.setattr(described, "drawings", drawings)
    told, split = describe(models("emoji-clip")), world("This test").load("new-drawing")
    assert told.drawings == len(split.images) == 979
    vlm, labels = models("emoji-clip").vlm, torch.as_tensor(split.labels)
    images, texts = vlm.image_features(list(split.images)), vlm.text_features(list(split.classes))
    plain, bayes = told.qualities
    for quality, probs in ((plain, vlm.plain(images, texts)), (bayes, vlm.classify(images, texts).probs)):
        assert quality.top1 == pytest.approx(accuracy(probs, labels).value)
        assert quality.nlpd == pytest.approx(nlpd(probs, labels).value, rel=1e-4)
        assert quality.ece == pytest.approx(ece(probs, labels), rel=1e-3)
    assert bayes.nlpd < plain.nlpd
    assert bayes.ece < plain.ece
    assert told.card.lstrip().startswith("# Posterior of emoji-clip")
    assert f"{bayes.nlpd:.3f}" in description_html(told)


def test_an_alert_is_text() -> None:
    assert "script" not in _Elements(alert(NASTY)).found
