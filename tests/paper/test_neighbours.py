"""Two distances in small: what is run, which way round differences are, when there is a trend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayesvlm.active import select
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Adaptation
from bayesvlm_paper.items import learning_curves
from bayesvlm_paper.items.neighbours import EPIG, gap, judgement, measure, published_panels, table, tell
from bayesvlm_paper.plans import CLIP_BASE, Plan
from bayesvlm_paper.printed import published_curves
from paper.small_world import SmallLab, quick, run_of, small_task
from paper.told import told


def test_only_the_distance_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    lab = SmallLab(tmp_path)
    learning_curves.measure(lab)  # type: ignore[arg-type]
    done: list[tuple[str, str]] = []
    honest = Adaptation._run
    monkeypatch.setattr(
        Adaptation,
        "_run",
        lambda self, s, seed: done.append((self.schedule.metric, s)) or honest(self, s, seed),
    )
    finding = told(lab, measure, tell)
    assert set(done) == {("cosine", "epig"), ("wasserstein", "targeted-bald"), ("wasserstein", "epig")}
    assert len(done) == 6, "BALD by cosine is of the learning curves"
    task = small_task()
    files = [json.loads(path.read_text()) for path in (tmp_path / "runs" / "tiny" / "small").glob("*.json")]
    for metric, strategy in done[::2]:
        (own,) = (
            kept
            for kept in files
            if (kept["strategy"], kept["seed"], kept["inputs"]["protocol"]["metric"]) == (strategy, 1, metric)
            and (strategy != "epig" or kept["inputs"]["protocol"]["epig"]["gamma"] == 1e-4)
        )
        picks = select(
            lab.made, task.pool.features, task.target.features, task.classes, strategy, 25, task.pool.labels, 1,
            draws=10, metric=metric, options=EPIG,
        )  # fmt: skip
        assert own["picks"] == picks.tolist()
    lines, table = finding.exhibits
    assert [(panel.title, panel.y) for panel in lines.panels] == [
        ("small", "NLPD (nats)"),
        ("small", "balanced accuracy (%)"),
    ]
    series = {each.name: each for each in lines.panels[1].series}
    assert {name: each.dashed for name, each in series.items()} == {
        "targeted BALD, cosine": True,
        "EPIG, cosine": True,
        "targeted BALD, Wasserstein": False,
        "EPIG, Wasserstein": False,
    }
    assert series["EPIG, cosine"].x == [10, 25]
    curves = finding.numbers["small"]["cosine"]["curves"]
    assert series["EPIG, cosine"].y[1] == pytest.approx(100 * curves["balanced_accuracy"]["epig"]["25"][0])
    means = [finding.numbers["small"][d]["curves"]["nlpd"]["epig"]["25"][0] for d in ("cosine", "wasserstein")]
    assert table.rows[1][0] == "small, EPIG"
    assert table.rows[1][2].startswith(f"{means[0] - means[1]:+.3f}")


def test_a_difference_is_positive_where_wasserstein_is_lower() -> None:
    cosine = [run_of("epig", seed, {10: 1.5 + seed}) for seed in (0, 1)]
    cosine += [run_of("targeted-bald", seed, {10: 9.0}) for seed in (0, 1)]
    wasserstein = [run_of("epig", seed, {10: 1.4 + 1.1 * seed}) for seed in (0, 1)]
    found = gap({"cosine": cosine, "wasserstein": wasserstein}, "epig", 10)
    assert found.value == pytest.approx(0.05)
    assert found.standard_error == pytest.approx(0.05)


NAN = float("nan")
PLACES = [("black", strategy, count) for strategy in ("epig", "targeted-bald") for count in (10, 200)]


@pytest.mark.parametrize(
    ("values", "errors", "ahead", "behind", "verdict"),
    [
        ([-0.03] * 4, [0.01] * 4, 0, 4, "does not hold"),
        ([0.02, -0.03, -0.03, -0.03], [0.01] * 4, 1, 3, "holds"),
        ([0.02] * 4, [0.01] * 4, 4, 0, "does not hold"),
        ([0.02] * 4, [0.01, 0.01, 0.01, 0.02], 3, 0, "holds"),  # all on one side, one within its error
        ([0.02] * 4, [0.01, 0.01, 0.01, NAN], 3, 0, "holds"),
        ([0.02, 0.02, 0.02, 0.0], [0.0] * 4, 3, 0, "holds"),  # a tie is for neither
        ([0.02] * 4, [NAN] * 4, None, None, "cannot be tested here"),
    ],
)
def test_when_there_is_a_trend(
    values: list[float], errors: list[float], ahead: int | None, behind: int | None, verdict: str
) -> None:
    holds, figure = judgement({place: Estimate(*each) for place, *each in zip(PLACES, values, errors, strict=True)})
    assert {True: "holds", False: "does not hold", None: "cannot be tested here"}[holds] == verdict
    if ahead is None:
        assert "one seed has no standard error" in figure
    else:
        assert f"Wasserstein is lower in NLPD at {ahead} and cosine at {behind} of 4 points" in figure
    assert f"{max(values, key=abs):+.3f}" in figure
    assert "nan" not in figure


def test_targets_with_other_numbers_of_labels() -> None:
    found = {("black", "epig", 10): Estimate(0.1, 0.01), ("white", "epig", 25): Estimate(-0.0001, 0.02)}
    shown = table(found)
    assert shown.columns == ["labels", "10", "25"]
    assert shown.rows == [["black, EPIG", "+0.100 ± 0.010", ""], ["white, EPIG", "", "+0.000 ± 0.020"]]
    assert shown.caption.endswith("with standard errors.")
    assert "standard error" not in table({("black", "epig", 10): Estimate(0.1, NAN)}).caption


def test_one_seed_has_no_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    one, two = (told(SmallLab(tmp_path, seeds=seeds), measure, tell) for seeds in (1, 2))
    assert one.claims[0].verdict == "cannot be tested here"
    for finding, drawn in ((one, False), (two, True)):
        lines = finding.exhibits[0]
        assert all((each.error is not None) == drawn for panel in lines.panels for each in panel.series)
        assert ("Mean and standard error over 2 seeds" in lines.caption) == drawn
    assert "One seed, which has no standard error." in one.exhibits[0].caption
    assert "±" not in str(one.exhibits[1].rows)


def test_printed_curves_are_beside_the_printed_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, accuracy = published_panels("officehome", "Art")
    printed = {
        (each["metric"], each["method"], each["distance"]): each
        for each in published_curves("results_knn_method_ablation")["series"]
        if each["panel"] == "OH-Art"
    }
    own = {each.name: each for each in accuracy.series}
    assert own["EPIG, cosine"].y == pytest.approx([100 * y for y in printed["ACC", "EPIG", "cosine"]["y"]])
    assert own["EPIG, cosine"].dashed
    own = {each.name: each for each in likelihood.series}
    assert own["targeted BALD, Wasserstein"].y == pytest.approx(printed["NLPD", "BALD", "Wasserstein"]["y"])
    assert not own["targeted BALD, Wasserstein"].dashed
    assert published_panels("world", "Art") == []
    assert published_panels("imagenet-variants", "Sketch") == []
    quick(monkeypatch)
    plan = Plan(domains="officehome", targets=("Art",))
    for name, count in ((CLIP_BASE, 4), ("tiny", 2)):
        finding = told(SmallLab(tmp_path, (name,), plan, seeds=1), measure, tell)
        assert len(finding.exhibits[0].panels) == count
