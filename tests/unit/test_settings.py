"""Recipes and `--config` are read as Snakemake reads them."""

import json
import os
import subprocess
import sys

import pytest

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.provenance import PACKAGE_ROOT
from latflow.workflow.recipe import Recipe
from latflow.workflow.settings import (
    check_overrides,
    find_recipe,
    give_cache,
    nested_setting,
    nested_values,
    read_config,
    recipe_and_targets,
)

RECIPE = """
experiment: a
seed: 1
rate: 1.0e-3
text_rate: 1e-3
decode: {beam: 13, tune: {from: 7, to: 17}}
"""
SETTINGS = [
    "seed=7", "rate=1e-4", "name=07x", "flag=true", "other=False", "empty=",
    "decode={beam: 11, tune: {to: 20}}", "list=[1, 2.5, x]", "text=a: b", "big=1_000",
]  # fmt: skip
SNAKEFILE = """
import json
from snakemake.utils import update_config
plain = json.loads(json.dumps(config))
from latflow.workflow.settings import nested_values
update_config(config, nested_values(workflow.config_settings.config))
json.dump([plain, config], open("seen.json", "w"))
rule all:
"""


def seen_by_snakemake(folder):
    """Configuration in the workflow: as Snakemake made it, and with nested values."""
    (folder / "Snakefile").write_text(SNAKEFILE)
    done = subprocess.run(
        [
            sys.executable, "-m", "snakemake", "-n",
            "--configfile", "recipe.yaml", "--config", *SETTINGS,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT.parent)},
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "seen.json").read_text())


def test_settings_mean_what_they_mean_to_snakemake(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    plain, nested = seen_by_snakemake(tmp_path)
    assert read_config(recipe, SETTINGS) == nested
    flat = [s for s in SETTINGS if "{" not in s and "[" not in s]
    ours = read_config(recipe, flat)
    assert {k: ours[k] for k in ours if k != "decode"} == {
        k: plain[k] for k in plain if k not in {"decode", "list"}
    } | {"flag": True}  # a string in Snakemake
    assert nested["decode"] == {"beam": 11, "tune": {"from": 7, "to": 20}}
    assert nested["list"] == [1, 2.5, "x"]


def test_strings_stay_strings():
    given = {"a": {"b": "x: y", "c": "[1]", "d": "", "e": "no"}, "top": "11"}
    assert nested_values(given) == {
        "a": {"b": "x: y", "c": "[1]", "d": None, "e": "no"},
        "top": "11",
    }


def test_booleans_are_read_as_yaml_and_as_python_write_them():
    given = {"a": "true", "b": "false", "c": {"d": "true", "e": "False"}, "f": "True "}
    read = {"a": True, "b": False, "c": {"d": True, "e": False}, "f": "True "}
    assert nested_values(given) == read


@pytest.mark.parametrize("setting", ["seed", "=1", "1x=2"])
def test_setting_that_is_none_is_refused(tmp_path, setting):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(UserError, match="Invalid config definition"):
        read_config(tmp_path / "recipe.yaml", [setting])


def test_recipe_that_is_no_yaml_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    for text, what in (
        ("a: [1\n", "YAML"),
        ("- 1\n", "YAML"),
        ("a: 2001-99-99\n", "month"),
        ("a: &x [*x]\n", "an alias stands for what it is part of"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=what):
            read_config(path)


def test_recipes_are_found_by_path_and_by_name(tmp_path, repository, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    assert str(find_recipe("mine.yaml")) == "mine.yaml"
    assert find_recipe("digits") == repository / "config/recipes/digits.yaml"
    assert find_recipe("demo") == find_recipe("config/config.yaml")
    with pytest.raises(UserError, match="comes with latflow: digits"):
        find_recipe("nothing")


def test_override_of_a_nested_key_is_a_setting_of_its_section(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    overrides = [
        "decode.beam=11", "decode.tune.to=20", "decode.word='a: b'",
        "decode.list=[1, x]",
        "decode.tune={step: 2}", "decode.none=", "decode.on=true",
        "decode.off=False", "decode.odd=a: b: c", "seed=7",
    ]  # fmt: skip
    config = read_config(recipe, [nested_setting(override) for override in overrides])
    assert config["seed"] == 7
    assert config["decode"] == {
        "beam": 11,
        "tune": {"from": 7, "to": 20, "step": 2},
        "word": "a: b",
        "list": [1, "x"],
        "none": None,
        "on": True,
        "off": False,
        "odd": "a: b: c",
    }


@pytest.mark.parametrize("override", ["a.b", "=1", ".a=1", "a..b=1", "a.=1"])
def test_override_that_names_no_key_is_refused(override):
    with pytest.raises(UserError, match=r"is not KEY\.KEY=VALUE"):
        nested_setting(override)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "nnet: {}\nlm: {}\nnet: 1\nnnet: {}",
            "lines 1 and 4: the key nnet s",
        ),
        ("a: {b: 1,\n b: 2}", "lines 1 and 2: the key b stands twice"),
        ("a:\n\t- b", "line 2: not readable as YAML: .* indent by blanks, not tabs"),
        ("a: b: c", "line 1: not readable as YAML: mapping values are not allowed"),
        ("a: 1\nb: &b\n  c: [*b]", "line 2: an alias stands for what it is part of"),
        (
            "a0: &a0 [x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 9)),
            "its aliases stand for 2e[+]08 values",
        ),
    ],
)
def test_a_faulty_recipe_is_one_line_with_the_line(tmp_path, text, complaint):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_config(tmp_path / "recipe.yaml")


def test_anchors_may_be_merged_and_templates_may_repeat_keys(tmp_path):
    (tmp_path / "recipe.yaml").write_text("a: &a {b: 1}\nc: {<<: *a, b: 2}\n")
    assert read_config(tmp_path / "recipe.yaml")["c"] == {"b": 2}
    template = "__use_yte__: true\n?if True:\n  a: 1\n?else:\n  a: 2\n"
    (tmp_path / "recipe.yaml").write_text(template)
    assert read_config(tmp_path / "recipe.yaml") == {"a": 1}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"experiment": 202401}, "experiment: .* quote it"),
        ({"nnet": {"systems": {False: {}}}}, "nnet.systems.False: .* a truth value"),
        ({2024: {}}, "configuration 2024: .* quote it"),
    ],
)
def test_what_yaml_takes_for_something_else_is_to_be_quoted(config, complaint):
    with pytest.raises(UserError, match=complaint):
        Recipe.from_config({"lm": {"type": "uniform"}, **config})


def test_an_override_names_a_system_that_is_there():
    config = {"nnet": {"systems": {"tdnnf": {}}}}
    check_overrides(config, ["nnet.systems.tdnnf.training.epochs=3", "seed=1"])
    check_overrides(config, ['nnet.systems.new={"type": "ce"}'])
    with pytest.raises(UserError, match=r"no system tdnf in nnet.systems .* tdnnf$"):
        check_overrides(config, ["nnet.systems.tdnf.training.epochs=3"])


def test_dotted_keys_of_config_point_to_overrides(tmp_path):
    (tmp_path / "recipe.yaml").write_text("experiment: a\n")
    with pytest.raises(UserError, match=r"by -o nnet\.device=cpu$"):
        read_config(tmp_path / "recipe.yaml", ["nnet.device=cpu"])


def test_all_of_several_config_options_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("experiment: a\n")
    run = []
    monkeypatch.setattr(os, "execv", lambda _, command: run.extend(command))
    main(
        [
            "run",
            "gmm",
            "--config",
            "seed=1",
            "-n",
            "--config",
            "corpora=c",
            "experiment=b",
        ]
    )
    assert run[4:10] == ["gmm", "-n", "--config", "seed=1", "corpora=c", "experiment=b"]


@pytest.mark.parametrize(
    ("words", "recipe", "targets"),
    [
        ([], None, []),
        (["gmm_mono"], None, ["gmm_mono"]),
        (["corpus"], None, ["corpus"]),  # a folder without a recipe is here, too
        (["results/x/wer.tsv"], None, ["results/x/wer.tsv"]),
        (["recipe.yaml", "gmm"], "recipe.yaml", ["gmm"]),
        (["absent.yaml", "gmm"], "absent.yaml", ["gmm"]),
        (["demo", "gmm"], "demo", ["gmm"]),
        ([".", "gmm"], ".", ["gmm"]),
    ],
)
def test_in_a_folder_with_a_recipe_the_first_word_may_be_a_target(
    tmp_path, monkeypatch, words, recipe, targets
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("experiment: a\n")
    (tmp_path / "corpus").mkdir()
    assert recipe_and_targets(words) == (recipe, targets)


def test_elsewhere_the_first_word_is_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_and_targets(["gmm", "lm"]) == ("gmm", ["lm"])


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_without_a_writable_home_the_cache_is_in_the_folder_of_the_run(
    tmp_path, monkeypatch, home
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    give_cache()
    assert os.environ["XDG_CACHE_HOME"] == str(tmp_path / ".snakemake/cache")


def test_a_writable_cache_stays_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    give_cache()
    assert "XDG_CACHE_HOME" not in os.environ
    assert (tmp_path / ".cache/snakemake").is_dir()
