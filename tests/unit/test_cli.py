"""The commands are thin, documented, and end user errors in one line."""

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import yaml

from latflow.cli.align import _remove_runs
from latflow.cli.main import TOPICS, _parser, main
from latflow.errors import UserError
from latflow.provenance import PACKAGE_ROOT
from latflow.workflow.settings import keep_config


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def in_repository(repository, monkeypatch):
    monkeypatch.chdir(repository)


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in ("doctor", "config", "show", "import-kaldi", "ngram", "model-info"):
        assert name in text


def test_config_prints_every_default(capsys, in_repository):
    status, out, _ = run(capsys, "config")
    config = yaml.safe_load(out)
    assert status == 0
    assert config["decode"]["beam"] == 13
    assert config["features"]["cmvn"] == {"type": "speaker", "norm_vars": False}


def test_settings_override_the_recipe(capsys, in_repository):
    status, out, _ = run(capsys, "config", "--config", "seed=7", "corpora=elsewhere")
    assert status == 0
    assert yaml.safe_load(out)["seed"] == 7


def test_settings_are_merged_into_sections(capsys, in_repository):
    setting = "decode={beam: 11, rescore: {}}"
    status, out, _ = run(capsys, "config", "--config", setting)
    assert status == 0
    found, before = yaml.safe_load(out), yaml.safe_load(run(capsys, "config")[1])
    assert found["decode"] == {**before["decode"], "beam": 11}
    assert found["gmm"] == before["gmm"]


def test_overrides_reach_keys_within_sections(capsys, in_repository):
    status, out, _ = run(
        capsys, "config", "--config", "seed=7", "decode={beam: 9}",
        "-o", "decode.beam=11", "-o", "gmm.systems.mono.num_gaussians=9",
    )  # fmt: skip
    assert status == 0
    found = yaml.safe_load(out)
    assert (found["seed"], found["decode"]["beam"]) == (7, 11)
    assert found["gmm"]["systems"]["mono"]["num_gaussians"] == 9
    assert "tri1" in found["gmm"]["systems"]


def test_run_gives_overrides_and_settings_to_snakemake_as_one(monkeypatch):
    given = []
    monkeypatch.setattr(os, "execv", lambda _, command: given.extend(command))
    main(
        [
            *("run", "-o", "gmm.a=1", "demo", "gmm_mono", "-o", "seed=3", "-n"),
            *("--config", "corpora=c", "lang={}", "--cores", "2", "-o", "gmm.b=z"),
        ]
    )
    assert given[1:9] == [
        "-m",
        "latflow.interruption",
        "snakemake",
        "gmm_mono",
        "-n",
        "--cores",
        "2",
        "--config",
    ]
    settings = ["corpora=c", "lang={}", 'gmm={"a": "1"}', "seed=3", 'gmm={"b": "z"}']
    assert given[9:14] == settings


def test_bash_completes_commands_options_and_values(capsys, tmp_path):
    status, script, _ = run(capsys, "completion", "bash")
    assert status == 0
    (tmp_path / "script").write_text(script)
    (tmp_path / "digits.txt").touch()
    asked = {
        "latflow for": ["forward"],
        "latflow lattice n-": ["n-best"],
        "latflow forward --for": ["--form"],
        "latflow forward --form ": ["ark", "hdf5", "lhotse"],
        "latflow run digits": ["digits", "digits.txt"],
        "latflow config --configfile dem": ["demo"],
        "latflow doctor dem": ["demo"],
        "latflow ngram text": [],
    }
    for line, wanted in asked.items():
        words = line.split(" ")
        done = subprocess.run(
            [
                "bash", "-c",
                'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _latflow;'
                'printf "%s\\n" "${COMPREPLY[@]}"',
                "bash", *words,
            ],
            cwd=tmp_path, check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = done.stdout.split()
        if "digits" in line:
            assert set(wanted) <= set(found)
        else:
            assert found == wanted


def test_help_waits_for_no_large_library():
    code = (
        "import sys; from latflow.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numba', 'lhotse', 'pydantic', 'snakemake'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    "begin",
    [
        "import latflow.cli",
        "from latflow.workflow.signals import handle_signals; handle_signals()",
    ],
)
def test_an_interruption_at_the_start_is_one_line(begin):
    told = []
    for error in ("KeyboardInterrupt", "ValueError('a fault')"):
        command = [sys.executable, "-c", f"{begin}\nraise {error}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told.append(done.stderr)
    assert told[0] == "interrupted; run the same command again\n"
    assert "Traceback" in told[1]
    assert told[1].endswith("ValueError: a fault\n")


def test_an_interruption_of_what_run_starts_is_one_line(tmp_path):
    code = "import sys\nassert sys.argv[2:] == ['1']\nraise KeyboardInterrupt"
    (tmp_path / "slow.py").write_text(code)
    command = [sys.executable, "-m", "latflow.interruption", "slow", "--cores", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == "interrupted; run the same command again\n"
    assert done.returncode == -signal.SIGINT


def test_sigterm_ends_with_a_line():
    code = """
import os, signal
from latflow.interruption import reporting_termination
signal.signal(signal.SIGTERM, signal.SIG_DFL)
with reporting_termination():
    os.kill(os.getpid(), signal.SIGTERM)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "ended by SIGTERM; run the same command again\n"
    assert done.returncode == -signal.SIGTERM


def test_init_writes_a_recipe_that_is_complete(capsys, tmp_path, monkeypatch):
    assert run(capsys, "init", tmp_path / "mine")[0] == 0
    monkeypatch.chdir(tmp_path / "mine")
    status, out, err = run(capsys, "config", "--configfile", "recipe.yaml")
    assert (status, err) == (0, "")
    systems = yaml.safe_load(out)["nnet"]["systems"]
    assert [systems[name]["type"] for name in systems] == ["ce", "sequence", "lfmmi"]
    for name in ("tdnnf", "chain"):
        assert run(capsys, "network", systems[name]["network"])[0] == 0
    status, _, err = run(capsys, "init", tmp_path / "mine")
    assert status == 1
    assert "is there already" in err


def test_other_shells_complete_too(capsys):
    _, bash, _ = run(capsys, "completion", "bash")
    _, zsh, _ = run(capsys, "completion", "zsh")
    assert zsh.startswith("#compdef latflow\n")
    assert zsh.endswith(bash)
    _, fish, _ = run(capsys, "completion", "fish")
    lines = fish.splitlines()
    assert all(line.startswith("complete -c latflow -n ") for line in lines)
    forward = "complete -c latflow -n '__fish_seen_subcommand_from forward' -l form -x"
    assert any(line.startswith(f"{forward} -a 'ark hdf5 lhotse'") for line in lines)
    assert any("from lattice; and not" in x and "-a n-best -d" in x for x in lines)
    assert any("from run' -a 'digits " in line for line in lines)


def test_help_has_each_command_once(capsys):
    groups = _parser().get_default("groups")
    commands = [name for g in groups for name in ([g.name] if g.name else g.commands)]
    listed = [name for names in TOPICS.values() for name in names]
    assert sorted(listed) == sorted(commands)
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "\nThe model at work:\n  package " in shown
    assert max(map(len, shown.splitlines())) <= 90


def test_explain_tells_of_one_key(capsys):
    assert run(capsys, "explain", "decode.beam")[1].splitlines()[-2:] == [
        "  type: number > 0",
        "  default: 13.0",
    ]
    _, out, _ = run(capsys, "explain", "corpus.train.table")
    assert "    audio (null): Folder that paths of audio are relative to" in out
    _, out, _ = run(capsys, "explain", "corpus.test.mine.table.path")
    assert "  required" in out
    assert "wav.scp" not in out
    _, out, _ = run(capsys, "explain", "corpus.train.path")  # of five types
    assert out.count("corpus.train.path (type: ") == 5
    _, out, _ = run(capsys, "explain", "gmm.systems.tri1.num_leaves")
    assert "(type: deltas, lda_mllt, sat)" in out
    _, out, _ = run(capsys, "explain", "lm")
    assert "latflow explain lm.arpa" in out
    assert "    corpus: " in run(capsys, "explain")[1]


@pytest.mark.parametrize(
    ("key", "remedy"),
    [("corpus.trian", "train"), ("corpus.train.tabel", "table"), ("seed.x", "leave")],
)
def test_explain_knows_no_such_key(capsys, key, remedy):
    status, _, err = run(capsys, "explain", key)
    assert status == 1
    assert remedy in err
    assert err.count("\n") == 1


def test_documents_come_along(capsys):
    _, out, _ = run(capsys, "docs")
    topics = [line.split()[0] for line in out.splitlines()]
    assert {"readme", "configuration", "serving", "training"} <= set(topics)
    for topic in topics:
        assert run(capsys, "docs", topic)[0] == 0
    _, part, _ = run(capsys, "docs", "serving", "pauses")
    assert part.startswith("## Pauses\n")
    assert "\n## " not in part
    status, _, err = run(capsys, "docs", "servin")
    assert (status, "serving" in err) == (1, True)
    status, _, err = run(capsys, "docs", "serving", "teapot")
    assert (status, "Pauses" in err) == (1, True)


def test_nothing_to_package_is_told(capsys, in_repository):
    status, _, err = run(capsys, "run", "digits", "package", "-n")
    assert status == 1
    assert "configuration package.systems names no system" in err
    assert "there are: mono, " in err


@pytest.mark.slow
def test_run_prints_what_it_does_and_does_it(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "latflow.cli.main", "run", "demo", "gmm_mono", "-n",
            "--quiet", "rules", "--config", "gmm={systems: {mono: {num_gaussians: 9}}}",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stderr.startswith("snakemake gmm_mono -n --quiet rules")
    assert "train_mono" in said


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["plan"], ["show"]])
def test_a_command_takes_one_recipe(capsys, command):
    status, _, err = run(capsys, *command, "demo", "--configfile", "other.yaml")
    assert status == 1
    assert "two recipes are named: demo and other.yaml" in err


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Be in a folder with a recipe, and results of a run with a setting."""
    monkeypatch.chdir(tmp_path)
    source = {"type": "synthetic", "speakers": 2, "utterances": 4}
    recipe = {
        "experiment": "mine",
        "corpus": {"train": source, "dev": source, "test": {"test": source}},
        "gmm": {"systems": {"mono": {"type": "mono"}}},
        "lm": {"type": "text"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    keep_config({**recipe, "seed": 7}, "results/mine")


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        ((), 1),
        (("recipe.yaml",), 1),
        ((".",), 1),
        (("--configfile", "recipe.yaml"), 1),
        (("results/mine",), 7),
        (("results/mine", "--configfile", "recipe.yaml"), 1),
        (("-o", "seed=3", "recipe.yaml"), 3),
    ],
)
def test_an_experiment_is_named_by_recipe_folder_or_results(capsys, mine, words, seed):
    status, out, err = run(capsys, "config", *words)
    assert (status, err) == (0, "")
    assert yaml.safe_load(out)["seed"] == seed


@pytest.mark.parametrize("words", [(), ("recipe.yaml",), ("results/mine",)])
def test_results_are_found_by_recipe_or_folder(capsys, mine, words):
    assert "results/mine: no results yet" in run(capsys, "show", *words)[2]


@pytest.mark.parametrize(
    ("words", "recipe", "further"),
    [
        ((), "recipe.yaml", []),
        (("-n",), "recipe.yaml", ["-n"]),
        (("-n", "--cores", "2"), "recipe.yaml", ["-n", "--cores", "2"]),
        (("results/mine", "gmm_mono"), "results/mine/config.yaml", ["gmm_mono"]),
        (("--configfile", "recipe.yaml", "-n"), "recipe.yaml", ["-n"]),
        ((".", "all", "-n"), "recipe.yaml", ["all", "-n"]),
        ((".", "-n", "--", "all"), "recipe.yaml", ["all", "-n"]),
        (("--", "all", "lang"), "recipe.yaml", ["all", "lang"]),
    ],
)
def test_run_finds_the_recipe_of_the_folder(monkeypatch, mine, words, recipe, further):
    given = []
    monkeypatch.setattr(os, "execv", lambda _, command: given.extend(command))
    main(["run", *words])
    assert given[4:-4] == further
    assert given[-2:] == ["--configfile", recipe]


def _lines_of_commands():
    """Give each command that takes words: its name, its words, some options."""
    for group in _parser().get_default("groups"):
        for name in group.commands:
            options = group.options(name)
            words = [settings for given, settings in options if given[:1] != "-"]
            if not words or any(w.get("nargs") == argparse.REMAINDER for w in words):
                continue
            line = [str(w.get("choices", ["7"])[0]) for w in words]
            line += ["8"] * (words[-1].get("nargs") in {"*", "+"})
            plain = {
                given: [given] if s.get("action") == "store_true" else [given, "9"]
                for given, s in options
                if given[:1] == "-" and not s.keys() & {"nargs", "choices"}
            }
            needed = [given for given, s in options if s.get("required")]
            chosen = dict.fromkeys([*needed, *list(plain)[:1]])
            yield (
                [group.name, name] if group.name else [name],
                line,
                [word for given in chosen for word in plain[given]],
            )


def test_options_stand_anywhere_among_words():
    parser, tried = _parser(), 0
    for command, line, given in _lines_of_commands():
        expected = vars(parser.parse_args([*command, *given, *line]))
        for place in range(1, len(line) + 1):
            mixed = [*command, *line[:place], *given, *line[place:]]
            assert vars(parser.parse_args(mixed)) == expected, mixed
            tried += 1
    assert tried > 100


def test_words_beyond_those_of_a_command_are_refused(capsys):
    line = ["align-one", "a", "b", "c", "d", "--speaker", "x", "e", "f"]
    with pytest.raises(SystemExit):
        _parser().parse_args(line)
    assert "unrecognized arguments: f" in capsys.readouterr().err


def test_without_a_recipe_nothing_is_examined(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("doctor", "run", "show", "plan"):
        status, out, err = run(capsys, command)
        assert (status, out) == (1, "")
        assert err.startswith("error: no recipe.yaml is in this folder - name a file")


def test_misspelt_setting_is_one_line(capsys, in_repository):
    status, out, err = run(capsys, "config", "--config", "sead=7")
    assert (status, out) == (1, "")
    assert err.startswith("error: unknown configuration key sead - did you mean seed?")
    assert err.count("\n") == 1


def test_missing_recipe_is_one_line(capsys, tmp_path):
    status, _, err = run(capsys, "doctor", "--configfile", tmp_path / "none.yaml")
    assert status == 1
    assert "none.yaml: no such recipe" in err


def test_show_before_any_run_says_what_to_do(capsys, tmp_path):
    status, _, err = run(capsys, "show", tmp_path)
    assert status == 1
    assert "no results yet - latflow run does it" in err


def test_model_info_prints_what_gmm_info_prints(capsys, golden):
    for system in ("mono", "tri1", "tri2b"):
        folder = golden / "gmm" / system
        status, out, _ = run(capsys, "model-info", folder / "final.mdl")
        assert status == 0
        assert out == (folder / "info.txt").read_text()


def test_model_copy_to_text_and_back_is_the_same_file(capsys, golden, tmp_path):
    model = golden / "gmm/mono/final.mdl"
    assert run(capsys, "model-copy", model, tmp_path / "text", "--text")[0] == 0
    assert run(capsys, "model-copy", model, tmp_path / "binary")[0] == 0
    assert (tmp_path / "binary").read_bytes() == model.read_bytes()
    assert (tmp_path / "text").read_text().startswith("<TransitionModel>")


def test_ngram_and_perplexity_fit_together(capsys, tmp_path):
    text = tmp_path / "text"
    text.write_text("a b c\nb c a\na a b\nc b a\n" * 3)
    assert run(capsys, "ngram", text, tmp_path / "lm.arpa", "--order", 2)[0] == 0
    status, out, _ = run(capsys, "perplexity", tmp_path / "lm.arpa", text)
    assert status == 0
    assert out.startswith("12 sentences, 36 words, 0 OOVs")


def test_kaldi_data_directory_goes_in_and_out(capsys, corpora, tmp_path):
    source = corpora / "digits" / "test"
    assert run(capsys, "import-kaldi", "data", source, tmp_path / "manifests")[0] == 0
    out = tmp_path / "data"
    assert run(capsys, "export-kaldi", "data", tmp_path / "manifests", out)[0] == 0
    for name in ("text", "utt2spk"):
        assert (out / name).read_text() == (source / name).read_text()


def test_kaldi_data_directory_comes_in_as_its_errors_say(capsys, tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.1, 8000)
    soundfile.write(tmp_path / "a.wav", noise, 8000)
    for name, lines in {
        "wav.scp": "a cat a.wav |\nb b.wav\n",
        "text": "a one\nb two\n",
        "utt2spk": "a s\nb s\n",
    }.items():
        (tmp_path / name).write_text(lines.replace("a.wav", f"{tmp_path}/a.wav"))
    importing = ("import-kaldi", "data", tmp_path, tmp_path / "out")
    given = []
    for setting in ("allow_commands=true", "on_bad_utterance=skip", None):
        status, _, said = run(capsys, *importing, *(["--set", *given] if given else []))
        assert (status, "Traceback" in said) == (int(setting is not None), False)
        if setting is not None:
            assert setting.split("=")[0] in said
            given.append(setting)
    cuts = (tmp_path / "out/supervisions.jsonl.gz").read_bytes()
    assert len(gzip.decompress(cuts).splitlines()) == 1


def test_doctor_finds_nothing_wrong_with_the_digits(capsys, corpora, in_repository):
    status, out, err = run(
        capsys, "doctor", "--configfile", "config/recipes/digits.yaml",
        "--config", f"corpora={corpora}",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert "0 errors" in out


def test_doctor_names_the_words_outside_the_lexicon(
    capsys, corpora, tmp_path, in_repository
):
    lexicon = tmp_path / "lexicon.txt"
    lines = (corpora / "digits/lexicon.txt").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("SEVEN")]
    lexicon.write_text("\n".join(kept) + "\n")
    _, out, _ = run(
        capsys, "doctor", "--configfile", "config/recipes/digits.yaml",
        "--config", f"corpora={corpora}", f"lang={{lexicon: {lexicon}}}",
    )  # fmt: skip
    assert "SEVEN" in out


@pytest.fixture
def lexicon(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("CAT K AE T\nTACT T AE K T\n")
    return path


def spoken(folder, name, text, rate=8000):
    """Write a second of noise with a transcript beside it."""
    folder.mkdir(exist_ok=True)
    wave = 0.1 * np.random.default_rng(1).standard_normal(rate)
    soundfile.write(folder / f"{name}.wav", wave, rate)
    (folder / f"{name}.txt").write_text(text)


def test_corpora_of_several_rates_are_aligned_at_the_lowest(capsys, tmp_path, lexicon):
    spoken(tmp_path / "corpus", "a", "cat", 16000)
    spoken(tmp_path / "corpus", "b", "tact", 8000)
    status, out, _ = run(capsys, "validate", tmp_path / "corpus", lexicon)
    assert status == 0
    assert "features are computed at 8000 Hz" in out


def test_hours_of_commands_that_are_not_run_are_unknown(capsys, tmp_path, lexicon):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "wav.scp").write_text("a cat a.wav |\n")
    (folder / "text").write_text("a cat\n")
    (folder / "utt2spk").write_text("a ann\n")
    status, out, _ = run(
        capsys, "validate", folder, lexicon, "--set", "allow_commands=true"
    )
    assert status == 0, out
    assert "1 utterances, hours unknown, since commands (pipes) are not run" in out


def test_all_words_without_pronunciation_are_found(capsys, tmp_path, lexicon):
    corpus = tmp_path / "corpus"
    spoken(corpus, "a", "cat dog dog")
    spoken(corpus, "b", "dog bird tact")
    status, out, _ = run(capsys, "find-oovs", corpus, lexicon, "--speaker", "single")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [(word, count) for word, count, _ in rows] == [("DOG", "3"), ("BIRD", "1")]
    assert [len(names.split()) for _, _, names in rows] == [2, 1]
    assert status == 0
    spoken(corpus, "a", "...")
    spoken(corpus, "b", "")
    status, out, err = run(capsys, "find-oovs", corpus, lexicon)
    assert (status, out) == (1, "")
    assert "no utterance is left to use" in err


def test_utterances_without_words_are_told(capsys, tmp_path, lexicon):
    corpus = tmp_path / "corpus"
    spoken(corpus, "a", "cat")
    spoken(corpus, "b", "")
    command = ("validate", corpus, lexicon, "--max-skipped")
    status, out, _ = run(capsys, *command, 0.5)
    assert status == 0
    assert "the transcript is empty (1): b" in out
    status, out, _ = run(capsys, *command, 0.4)  # as `latflow align` does
    assert status == 1
    assert f"error: {corpus}: b: " in out
    assert "skipped 1 of 2 utterances" in out
    (corpus / "a.txt").write_text("...")
    status, out, _ = run(capsys, "validate", corpus, lexicon)
    assert status == 1
    assert "no utterance is left to use" in out
    table = tmp_path / "lost.tsv"
    table.write_text("path\ttext\nlost.wav\tcat\n")
    status, out, _ = run(capsys, "validate", table, lexicon, "--speaker", "single")
    assert status == 1
    assert "audio file does not exist" in out


@pytest.mark.parametrize(
    ("row", "column"),
    [({"text": "cat", "speaker": ["x"]}, "speaker"), ({"text": ["cat"]}, "text")],
)
def test_columns_of_lists_are_one_line(capsys, tmp_path, lexicon, row, column):
    spoken(tmp_path / "corpus", "a", "cat")
    table = tmp_path / "table.jsonl"
    table.write_text(json.dumps({"path": "corpus/a.wav", "speaker": "s", **row}))
    _, out, _ = run(capsys, "validate", table, lexicon)
    assert f"column {column} holds a list, not a text (line 1) (1): corpus-a" in out


def test_settings_of_the_source_are_named_as_given(capsys, tmp_path, lexicon):
    command = ("validate", tmp_path, lexicon, "--set", "min_duration")
    assert "error: --set: " in run(capsys, *command)[2]


def test_numbers_that_g2p_cannot_take_are_one_line(capsys, tmp_path, lexicon):
    model = tmp_path / "model"
    err = run(capsys, "g2p", "train", lexicon, model, "--order", 0)[2]
    assert "g2p.order: should be greater than or equal to 1, not 0" in err
    err = run(capsys, "g2p", "apply", model, lexicon, "--number", 0)[2]
    assert "0 pronunciations of a word" in err


def test_places_that_cannot_be_written_are_one_line(capsys, tmp_path, lexicon):
    status, _, err = run(capsys, "g2p", "train", lexicon, tmp_path, "--order", 1)
    assert status == 1
    assert err.splitlines()[-1].startswith(f"error: {tmp_path}: Is a directory")


def test_channels_that_are_not_heard_are_told(capsys, tmp_path, lexicon):
    spoken(tmp_path / "corpus", "a", "cat")
    spoken(tmp_path / "corpus", "b", "tact")
    soundfile.write(tmp_path / "corpus/b.wav", np.full((8000, 2), 0.1), 8000)
    status, out, _ = run(capsys, "validate", tmp_path / "corpus", lexicon)
    assert status == 0
    assert (
        "train: several channels, of which none is named: one is taken (1): b - " in out
    )


FOLDERS = [
    ["lang", "lexicon.txt", "OUT", "demo"],
    ["import-kaldi", "data", "OUT/train", "OUT"],
    ["export-kaldi", "data", "corpus", "OUT"],
    ["export-kaldi", "system", "gmm", "lang", "OUT"],
    ["export-kaldi", "vosk", "demo", "chain", "OUT"],
    ["features", "cuts.jsonl.gz", "OUT", "demo"],
    ["export-features", "features", "cuts.jsonl.gz", "OUT"],
    ["hdf5", "import", "a.hdf", "--frames", "OUT", "--labels", "new"],
    ["hdf5", "import", "a.hdf", "--frames", "new", "--labels", "OUT"],
    ["hdf5", "digits", "OUT"],
    ["average", "a", "b", "--out", "OUT"],
    ["fuse", "a", "b", "--out", "OUT"],
    ["train-lm", "a.txt", "b.txt", "OUT"],
    ["package", "chain", "demo", "--out", "OUT"],
    ["import-mfa", "english.zip", "OUT"],
    ["learn-boundaries", "aligned", "by_hand", "OUT"],
    ["triton-repository", "OUT", "package"],
]


@pytest.mark.parametrize("words", FOLDERS, ids=lambda words: " ".join(words[:2]))
def test_folders_of_others_are_not_replaced(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "mine"
    (out / "train").mkdir(parents=True)
    (out / "thesis.tex").write_text("years")
    assert main([word.replace("OUT", str(out)) for word in words]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: {out}: is not empty (it holds thesis.tex), and would be replaced"
    )
    assert (out / "thesis.tex").read_text() == "years"
    assert main([word.replace("OUT", str(out / "thesis.tex")) for word in words]) == 1
    assert "thesis.tex: is not a folder" in capsys.readouterr().err


def test_what_a_command_wrote_before_is_replaced(capsys, tmp_path):
    (tmp_path / "lexicon.txt").write_text("<SIL> SIL\n<UNK> SPN\nyes Y EH S\n")
    words = ["lang", str(tmp_path / "lexicon.txt"), str(tmp_path / "lang"), "demo"]
    assert main(words) == 0
    (tmp_path / "lang/stale").touch()
    assert main(words) == 0
    assert not (tmp_path / "lang/stale").exists()


def test_align_cleans_what_is_its_own(capsys, tmp_path):
    for name in ("results/demo", ".snakemake"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(UserError, match="of another experiment: --clean would remove"):
        _remove_runs(tmp_path)
    assert (tmp_path / "results/demo").is_dir()
    (tmp_path / "results/demo").rmdir()
    _remove_runs(tmp_path)
    assert (tmp_path / ".snakemake").is_dir()
    (tmp_path / "results/align").mkdir()
    _remove_runs(tmp_path)
    assert os.listdir(tmp_path) == []


def shell(line, **environment):
    """Run a line of the shell; `$latflow` is the program."""
    program = f"{sys.executable} -m latflow.cli.main"
    environment = {**os.environ, "latflow": program, **environment}
    return subprocess.run(
        ["bash", "-c", line],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["--words", "--phrases", "--grammar", "--lm"])
def test_an_empty_name_of_a_file_is_refused(capsys, name):
    assert main(["transcribe", "package", "a.wav", name, ""]) == 1
    assert "an option that takes a file has an empty one" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has /dev/full")
def test_an_output_that_is_full_is_one_line():
    found = shell("$latflow docs > /dev/full")
    said = "error: no space left on the disk of the output\n"
    assert (found.returncode, found.stderr) == (1, said)


def test_streams_may_be_closed():
    found = shell("$latflow docs >&- <&-")
    assert (found.returncode, found.stderr) == (0, "")
    assert shell("$latflow explain no_such_key 2>&-").returncode == 1


def test_outputs_of_other_encodings_are_one_line():
    found = shell("$latflow docs align", PYTHONIOENCODING="ascii")
    assert found.returncode == 1
    assert found.stderr.startswith("error: the output is ascii, which has no '\\u")
    assert found.stderr.endswith("set PYTHONUTF8=1, or a locale of UTF-8\n")
