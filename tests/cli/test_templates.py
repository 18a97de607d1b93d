"""`--template`, `--templates` and synonyms, the same in every command that asks for classes."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
from command_line import run_command
from experiments.thinned import thinned
from PIL import Image

import bayesvlm_world
from bayesvlm import BayesVLM, world
from bayesvlm.pretrained import own_templates

TEMPLATES = ("{c}", "a drawing of {c}.", "{c}, an emoji")


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three photos, a file of templates, and a labelled folder with its own templates, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    images = [Image.open(BytesIO(image)).convert("RGB") for image in world.load("new-drawing").images[:6]]
    for number, image in enumerate(images):
        for folder in ("photos", f"mine/{('dog', 'grinning_face')[number % 2]}"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            image.save(f"{folder}/{number}.png")
    Path("templates.txt").write_text("\n".join(TEMPLATES) + "\n")


def each(templates: tuple[str, ...] = TEMPLATES) -> list[str]:
    return [word for template in templates for word in ("--template", template)]


def test_classify_averages_templates_as_python_does() -> None:
    command = ("classify", "emoji-clip", "photos", "--classes", "dog,red apple", "--json", "--top", 2)
    by_file, one_by_one = (
        run_command(*command, *options).json["images"] for options in (("--templates", "templates.txt"), each())
    )
    assert by_file == one_by_one
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    paths = sorted(Path("photos").iterdir())
    expected = vlm.classify(paths, ["dog", "red apple"], templates=TEMPLATES)
    for row, probs in zip(by_file, expected.probs.tolist(), strict=True):
        named = {best["class"]: best["prob"] for best in row["top"]}
        assert [named["dog"], named["red apple"]] == pytest.approx(probs, abs=1e-5)


def test_synonyms_are_separated_by_bars() -> None:
    Path("names.txt").write_text("dog | hound|puppy\nred apple\n")
    command = ("classify", "emoji-clip", "photos", "--json", "--top", 2, "--template", "{c}")
    by_file = run_command(*command, "--classes-file", "names.txt").json["images"]
    assert by_file == run_command(*command, "--classes", "dog|hound|puppy, red apple").json["images"]
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    expected = vlm.classify(sorted(Path("photos").iterdir()), [["dog", "hound", "puppy"], "red apple"])
    named = {best["class"]: best["prob"] for best in by_file[0]["top"]}
    assert [named["dog"], named["red apple"]] == pytest.approx(expected.probs[0].tolist(), abs=1e-5)


def test_eval_says_which_prompts_it_used() -> None:
    one = run_command("eval", "emoji-clip", "-d", "mine", "-o", "one")
    assert one.code == 0, one.err
    assert "Prompts: '{c}' for" in one.out, "a folder has none of its own: those that the model was trained with"
    several = run_command("eval", "emoji-clip", "-d", "mine", "-o", "several", *each())
    assert "Prompts: 3 templates, averaged, for" in several.out
    assert "3 templates, averaged" in Path("several/report.html").read_text()
    (path,) = Path("several/emoji-clip").glob("*.json")
    assert json.loads(path.read_text())["inputs"]["data"]["templates"] == list(TEMPLATES)
    again = run_command("eval", "emoji-clip", "-d", "mine", "-o", "several")
    assert again.code != 0, "measured with other prompts before"
    assert "made from other inputs (data" in again.err


def test_eval_takes_all_templates_of_a_set() -> None:
    ran = run_command("eval", "emoji-clip", "-d", "openmoji-black", "--templates", "all", "-o", "all")
    assert ran.code == 0, ran.err
    assert "Prompts: 8 templates, averaged, for openmoji-black." in ran.out
    (path,) = Path("all/emoji-clip").glob("*.json")
    data, held = (json.loads(path.read_text())["inputs"][name] for name in ("data", "validation"))
    assert data["templates"] == held["templates"] == list(world.load("openmoji-black").templates)


def test_tune_and_select_take_them() -> None:
    BayesVLM.from_pretrained("emoji-clip", device="cpu").save_pretrained("posterior")
    tuned = run_command("tune", "posterior", "mine", "--templates", "templates.txt", "--json").json
    assert tuned["images"] == 6
    one = run_command("tune", "posterior", "mine", "--template", "{c}", "--json").json
    assert tuned["nlpd"] != one["nlpd"]
    command = ("select", "emoji-clip", "-p", "photos", "-t", "photos", "--classes", "dog,red apple", "-n", 3, "--json")
    options = ("--strategy", "entropy", "--overwrite")
    several = run_command(*command, *options, *each()).json["chosen"]
    alone = run_command(*command, *options).json["chosen"]
    assert [row["score"] for row in several] != [row["score"] for row in alone]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--template", "a photo"), "has no place for the class name"),
        (("--template", "a {c}", "--template", "a {c}"), "more than once"),
        (("--template", "a {c}", "--templates", "templates.txt"), "give the one or the other"),
        (("--templates", "nothing.txt"), "there is no such file, nor a known set of that name"),
        (("--templates", "photos"), "cannot be read"),
    ],
)
@pytest.mark.parametrize("command", ["classify", "eval", "tune", "select"])
def test_mistakes(command: str, options: tuple[str, ...], sentence: str) -> None:
    arguments = {
        "classify": ("emoji-clip", "photos", "--classes", "dog,cat"),
        "eval": ("emoji-clip", "-d", "mine"),
        "tune": (".", "mine"),
        "select": ("emoji-clip", "-p", "photos", "-t", "photos", "--classes", "dog,cat"),
    }[command]
    ran = run_command(command, *arguments, *options)
    assert ran.code != 0
    assert sentence in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["classify", "select", "finetune", "export", "eval", "tune", "adapt"])
def test_help_offers_all_where_it_is_taken(command: str) -> None:
    said = " ".join(run_command(command, "--help").out.replace("│", " ").split())
    assert "Several prompts: a file" in said
    assert ("all, the data set's own" in said) == (command in ("eval", "tune", "adapt"))


def test_all_is_for_commands_with_a_data_set() -> None:
    ran = run_command("classify", "emoji-clip", "photos", "--classes", "dog,cat", "--templates", "all")
    assert ran.code != 0
    assert "all is for commands whose data set has prompts" in ran.err


def test_a_known_set_s_templates_are_asked_for_by_its_name() -> None:
    command = ("classify", "emoji-clip", "photos", "--classes", "dog,cat", "--json")
    named = run_command(*command, "--templates", "cifar10").json["images"]
    from bayesvlm.data.labelled import KNOWN

    assert named == run_command(*command, *each(KNOWN["cifar10"].templates)).json["images"]


def test_prompts_that_tau_was_not_tuned_with_are_remarked_on() -> None:
    BayesVLM.from_pretrained("emoji-clip", device="cpu").save_pretrained("posterior")
    tuned = run_command("tune", "posterior", "mine", "--template", "{c}")
    assert "prompts: '{c}'" in tuned.out
    command = ("classify", "posterior", "photos", "--classes", "dog,red apple")
    other = run_command(*command, "--template", "a photo of a {c}.")
    assert "tau was tuned with '{c}' and classes are asked for with 'a photo of a {c}.'" in other.err
    assert "prompts: 'a photo of a {c}.'" in other.out
    assert "tau was tuned" not in run_command(*command).err, "asked as it was tuned, unless told otherwise"
    assert "prompts: '{c}'" in run_command(*command).out
    assert "tau was tuned" not in run_command("classify", "emoji-clip", *command[2:]).err, "it does not say with what"


def test_a_model_is_asked_as_it_was_tuned_or_trained() -> None:
    """Several prompts, too; and what the command says is what Python says."""
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    files = sorted(Path("photos").iterdir())
    answers = run_command("classify", "emoji-clip", "photos", "--classes", "dog,red apple", "--json").json
    expected = vlm.classify(files, ["dog", "red apple"])
    shown = [row["top"][0]["prob"] for row in answers["images"]]
    assert shown == pytest.approx(expected.probs.amax(dim=1).tolist(), abs=1e-5)
    vlm.with_provenance(tuned_with=list(TEMPLATES)).save_pretrained("several")
    command = ("classify", "several", "photos", "--classes", "dog,red apple", "--json")
    assert run_command(*command).json["images"] == run_command(*command, *each()).json["images"]
    plain = BayesVLM.from_projections(vlm.image.weight, vlm.text.weight, 4.0)
    assert own_templates(plain) == ["a photo of a {c}."], "the paper's"
