"""Dry runs: every recipe plans; mistakes in the configuration are one line."""

import shutil

import pytest
import yaml
from fixtures import dry_runs

REAL = [
    *("yesno", "yesno_download", "digits", "digits_flat_start", "digits_ctc"),
    *("digits_attention", "speechocean", "speechocean_noisy", "speechocean_today"),
]
LARGE = ["mini_librispeech", "librispeech_100", "librispeech_460", "librispeech_960"]
TARGETS = ["features", "lang", "gmm_mono", "gmm_tri1", "align", "decode", "score"]


def snakemake(repository, folder, *arguments):
    """Run Snakemake on the repository's workflow in a folder of its own."""
    return dry_runs.snakemake(
        folder, "--snakefile", repository / "Snakefile", "--directory", folder,
        "--cores", "2", *arguments,
    )  # fmt: skip


def test_a_run_without_cores_is_refused(repository, tmp_path):
    recipe = repository / "config/recipes/digits.yaml"
    done = snakemake(
        repository, tmp_path, "--cores", "0", "--configfile", recipe, "--", "features"
    )
    assert done.returncode == 1
    assert "error: --cores begins at 1" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("recipe", REAL)
def test_recipes_for_real_speech_plan(repository, corpora, tmp_path, recipe):
    done = snakemake(
        repository, tmp_path, "--configfile",
        repository / f"config/recipes/{recipe}.yaml",
        "--config", f"corpora={corpora}", "-n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "make_report" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LARGE)
def test_recipes_for_librispeech_plan(repository, tmp_path, recipe):
    config = repository / f"config/recipes/{recipe}.yaml"
    done = snakemake(repository, tmp_path, "--configfile", config, "-n")
    assert done.returncode == 0, done.stderr
    for rule in ("train_lda_mllt", "train_sat", "decode_adapted", "rescore_lattices"):
        assert rule in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", [*TARGETS, "report"])
def test_named_targets_plan_on_the_default(repository, tmp_path, target):
    config = repository / "config/config.yaml"
    done = snakemake(repository, tmp_path, "--configfile", config, "-n", target)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("system", "is_adapted"), [("tri1", False), ("tri3b", True)])
def test_a_system_of_kaldi_takes_the_place_of_training(
    repository, golden, corpora, tmp_path, system, is_adapted
):
    config = yaml.safe_load((repository / "config/recipes/digits.yaml").read_text())
    exp = tmp_path / system
    shutil.copytree(golden / "gmm" / system, exp)
    (exp / "ali.1.gz").touch()
    config["gmm"] = {"import": str(exp), "lang": str(golden / "lang")}
    del config["nnet"]  # its networks learn the alignments of systems of the recipe
    path = tmp_path / "import.yaml"
    path.write_text(
        yaml.safe_dump({**config, "corpora": str(corpora)}, sort_keys=False)
    )
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode == 0, done.stderr
    for rule in ("import_lang", "import_system", "import_alignments", "make_graph"):
        assert rule in done.stdout
    assert "train_" not in done.stdout
    assert "make_lang" not in done.stdout
    assert ("decode_adapted" in done.stdout) == is_adapted


def test_a_network_that_aligns_comes_before_the_one_that_learns(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    networks = config["nnet"]["systems"]
    networks["second"] = {**networks["logmel"], "alignments": "tdnn"}
    path = tmp_path / "second.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    target = "results/tiny/nnet/second/weights.safetensors"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    for message in (
        "Align train with tdnn",
        "Align dev with tdnn",
        "Train the network tdnn",
        "Train the network second",
    ):
        assert message in done.stdout
    assert "network mmi" not in done.stdout


def test_a_network_learns_from_the_perturbed_set_that_its_system_aligns(
    repository, tmp_path
):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    config["corpus"]["cleaned"] = {"train_clean": {}}
    config["corpus"]["perturbed"] = {"train_sp": {"of": "train_clean"}}
    config["nnet"] = {
        "features": {"hires": {"type": "fbank"}},
        "ivectors": {"iv": {"features": "hires"}},
        "systems": {
            "tdnn": {
                "type": "ce", "alignments": "tri3", "training_set": "train_sp",
                "network": "tests/e2e/tiny_network.yaml",
            },
            "wide": {
                "type": "ce", "alignments": "tri3", "training_set": "train_sp",
                "network": "tests/e2e/tiny_network.yaml", "features": "iv",
                "data": {"normalization": "global"},
                "parent": "tdnn",
            },
            "mmi": {
                "type": "sequence", "parent": "tdnn", "criterion": {"type": "mmi"},
                "sequence": {"alignments": {"source": "on_the_fly"}},
            },
        },
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    targets = [f"results/{config['experiment']}/nnet/{n}/meta.json"
               for n in ("wide", "mmi")]  # fmt: skip
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", *targets)
    assert done.returncode == 0, done.stderr
    for message in (
        "Decode train against its own transcripts",
        "Take what agrees with its transcript from train: train_clean",
        "Take utterances at other speeds and volumes: train_sp",
        "Extract the features gmm of train_sp",
        "Extract the features hires of train_sp",
        "Train the extractor of the i-vectors iv",
        "Append i-vectors to the features of train_sp: iv",
        "Append i-vectors to the features of dev: iv",
        "Align train_sp with tri3, adapted to each speaker",
        "Compile the training graphs of train_sp for tri3",
    ):
        assert message in done.stdout, message
    trained = [job for job in done.stdout.split("Job ") if "Train the network" in job]
    assert len(trained) == 3
    for job in trained:
        assert "align/tri3/train_sp/ali.ark" in job
        assert "/frames/train_sp/" in job
        assert "/frames/train/" not in job
    (wide,) = [job for job in trained if "Train the network wide" in job]
    assert "nnet/tdnn/weights.safetensors" in wide


def test_features_of_several_streams_are_put_side_by_side(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    config["corpus"]["perturbed"] = {"train_sp": {}}
    config["nnet"] = {
        "features": {"hires": {"type": "fbank"}},
        "ivectors": {"iv": {"features": "hires"}},
        "pasted": {"both": {"features": ["tri3", "iv"]}},
        "systems": {
            "tdnn": {
                "type": "ce", "alignments": "tri3", "training_set": "train_sp",
                "network": "tests/e2e/tiny_network.yaml", "features": "both",
                "data": {"normalization": "global"},
            },
        },
    }  # fmt: skip
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    target = f"results/{config['experiment']}/decode/tdnn/test/lattices.ark"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    jobs = done.stdout.split("Job ")
    for split in ("train_sp", "dev", "test"):
        (job,) = [j for j in jobs if f"Put features of {split} side by side: both" in j]
        assert f"streams/tri3/frames/{split}/meta.json" in job
        assert f"streams/iv/frames/{split}/meta.json" in job
    (trained,) = [job for job in jobs if "Train the network tdnn" in job]
    for split in ("train_sp", "dev"):
        assert f"streams/both/frames/{split}/meta.json" in trained
    assert "Decode test with the network tdnn" in done.stdout


def test_trees_of_lattice_free_mmi_are_of_the_set_trained_on(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    config["corpus"]["perturbed"] = {"train_sp": {}}
    network = {"network": "config/networks/tdnnf_chain_small.yaml"}
    system = {"type": "lfmmi", "alignments": "tri3", **network}
    config["nnet"] = {"systems": {"chain": {**system, "training_set": "train_sp"}}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    target = f"results/{config['experiment']}/chain/chain/den.fst"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    (tree,) = [job for job in done.stdout.split("Job ") if "Build tree" in job]
    for file in ("streams/gmm/frames/train_sp/", "align/tri3/train_sp/ali.ark"):
        assert file in tree
    assert "/train/" not in tree


def test_supervision_is_made_from_lattices_where_they_are_asked_for(
    repository, tmp_path
):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    network = {"network": "config/networks/tdnnf_chain_small.yaml"}
    system = {"type": "lfmmi", "alignments": "tri3", "supervision_lattices": {}}
    config["nnet"] = {"systems": {"chain": {**system, **network}}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    folder = f"results/{config['experiment']}/chain/chain/supervisions"
    target = f"{folder}/train/meta.json"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    jobs = done.stdout.split("Job ")
    (lattices,) = [job for job in jobs if "Make lattices of the pronunc" in job]
    assert "align/tri3/train/trans.ark" in lattices
    (supervision,) = [job for job in jobs if "Make the supervision" in job]
    assert "chain/chain/lattices/train/lattices.ark" in supervision
    assert "ali.ark" not in supervision


@pytest.mark.slow
def test_simulated_sets_are_made_decoded_and_scored(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    test = next(iter(config["corpus"]["test"]))
    noise = tmp_path / "noise/rain.flac"
    noise.parent.mkdir()
    noise.touch()
    recorded = {"rain": {"type": "recorded", "files": str(noise.parent)}}
    records = tmp_path / "records.jsonl"
    records.touch()
    again = {"of": test, "records": str(records), "noises": recorded}
    noisy = {"of": test, "noises": recorded}
    config["corpus"]["simulated"] = {"noisy": noisy, "again": again}
    path = tmp_path / "recipe.yaml"

    def plan():
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return snakemake(repository, tmp_path, "--configfile", path, "-n", "score")

    done = plan()
    assert done.returncode == 0, done.stderr
    for message in (
        "Put utterances into rooms and noise: noisy",
        "Put utterances into rooms and noise: again",
        "Extract the features gmm of noisy",
        "Score",
    ):
        assert message in done.stdout
    for missing, told in ((noise, noise.parent), (records, records)):
        missing.unlink()
        refused = plan()
        assert refused.returncode != 0
        said = refused.stdout + refused.stderr
        assert "no such file" in said
        assert "simulate_corpus reads it" in said
        assert str(told) in said
        noise.touch()


@pytest.mark.slow
def test_jobs_share_the_work_on_a_set(repository, tmp_path):
    """Parts of each kind of system, and what joins them, in the place of one job."""
    config = repository / "tests/e2e/tiny.yaml"
    done = snakemake(
        repository, tmp_path, "--configfile", config, "-n", "decode",
        "--config", "num_jobs={decoding: 3, alignment: 2, extraction: 2}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for message in (
        "Decode part 3-of-3 of test with tri1",
        "Decode part 2-of-3 of dev with tri3, adapted to each speaker",
        "Decode part 1-of-3 of test with the network mmi",
        "Extract the features gmm of part 1-of-2 of test",
        "Store the features gmm of train",
        "Align part 2-of-2 of train with tri1",
        "Align part 1-of-2 of train with tri3, adapted to each speaker",
        "Join the alignments of train with tri1",
        "Join the alignments of train with tri3",
        "Join the lattices of tri1 on test",
        "Join the lattices of tri3 on dev",
        "Join the lattices of mmi on test",
    ):
        assert message in done.stdout, message
    for message in ("Decode test with", "Decode dev with", "Align train with"):
        assert message not in done.stdout


def test_misspelt_key_is_refused_when_the_workflow_is_read(repository, tmp_path):
    config = yaml.safe_load((repository / "config/config.yaml").read_text())
    config["decode"] = {**config.get("decode", {}), "beem": 13}
    path = tmp_path / "typo.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode != 0
    told = done.stdout + done.stderr
    assert "decode.beem" in told
    assert "did you mean beam?" in told
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "network", "learns"),
    [
        ("lfmmi", "tdnnf_chain_small", "chain/chain/supervisions"),
        ("ctc", "tdnnf_ctc_small", "ctc/chain"),
    ],
)
def test_a_recipe_without_a_gmm_plans(repository, tmp_path, kind, network, learns):
    """All stages up to the report, and none of a GMM system."""
    network = f"config/networks/{network}.yaml"
    config = yaml.safe_load((repository / "config/config.yaml").read_text())
    del config["package"], config["transcribe"]  # of the recipe's own network
    config["nnet"] = {"systems": {"chain": {"type": kind, "network": network}}}
    config["gmm"] = {"systems": {}}
    path = tmp_path / "flat_start.yaml"
    path.write_text(yaml.safe_dump(config))
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode == 0, done.stderr
    for name in (
        f"{learns}/dev/meta.json",
        "graph/chain/HCLG.fst",
        "decode/chain/test/lattices.ark",
        "report.html",
    ):
        assert f"/{name}" in done.stdout, name
    assert f"results/{config['experiment']}/gmm/" not in done.stdout


def test_a_network_with_a_tree_of_its_own_plans(repository, tmp_path):
    """Graph, denominator and alignments of sequence training are of that tree."""
    chain = {
        "type": "lfmmi",
        "network": "config/networks/tdnnf_chain_small.yaml",
        "alignments": "tri1",
    }
    mmi = {"type": "sequence", "parent": "chain", "criterion": {"type": "mmi"}}
    config = yaml.safe_load((repository / "config/config.yaml").read_text())
    del config["package"], config["transcribe"]  # of the recipe's own network
    config["nnet"] = {"systems": {"chain": chain, "mmi": mmi}}
    path = tmp_path / "chain.yaml"
    path.write_text(yaml.safe_dump(config))
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode == 0, done.stderr
    for name in (
        "chain/chain/final.mdl",
        "graph/chain/HCLG.fst",
        "denominator/chain/HCLG.fst",
        "align/chain/train/ali.ark",
        "decode/mmi/dev/lattices.ark",
    ):
        assert f"/{name}" in done.stdout, name


@pytest.mark.slow
def test_a_test_set_without_transcripts_is_decoded_and_not_scored(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    (tmp_path / "calls").mkdir()
    calls = {"type": "kaldi", "path": str(tmp_path / "calls"), "transcripts": False}
    config["corpus"]["test"]["calls"] = calls
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    done = snakemake(repository, tmp_path, "--configfile", path, "-n")
    assert done.returncode == 0, done.stderr
    assert "Decode calls with mono" in done.stdout
    assert "Write the words that mono finds in calls" in done.stdout
    assert "Write the words that tri1.longer finds in calls" in done.stdout
    assert "Score mono on test" in done.stdout
    assert "Score mono on calls" not in done.stdout


def test_a_neural_language_model_is_trained_weighed_and_rescores(repository, tmp_path):
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    lstm = {"lm": {"type": "neural", "size": 16}, "systems": ["mono"]}
    config["decode"]["rescore"]["lstm"] = lstm
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    target = "results/tiny/score/mono.lstm/test/wer.json"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    for message in (
        "Train the neural language model lstm",
        "Choose the weight of lstm beside the n-gram model on dev",
        "Rescore the n best of mono on dev with lstm",
        "Rescore the n best of mono on test with lstm",
        "Choose language model weight and insertion penalty of mono.lstm on dev",
    ):
        assert message in done.stdout
    assert "corpus/language/lm_text.txt" in done.stdout
    assert "lm/lstm.arpa" not in done.stdout
    assert "rescore_lattices" not in done.stdout


def test_words_that_the_lexicon_lacks_are_pronounced_before_lang(repository, tmp_path):
    config = repository / "tests/e2e/tiny.yaml"
    done = snakemake(
        repository, tmp_path, "--configfile", config, "-n", "lang",
        "--config", "lang={g2p: {num_pronunciations: 2}}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "g2p/lexicon.txt" in done.stdout
    assert "corpus/language/lm_text.txt" in done.stdout


def test_suspects_are_found_after_alignment_and_biased_decoding(repository, tmp_path):
    config = repository / "tests/e2e/tiny.yaml"
    done = snakemake(
        repository, tmp_path, "--configfile", config, "-n", "suspects",
        "--config", "suspects={sets: [train], system: mono, biased_decoding: {}}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for path in ("suspects.tsv", "biased/hyp.txt"):
        assert f"suspects/train/{path}" in done.stdout
    assert "align/mono/train/ali.ark" in done.stdout
    assert "tri1" not in done.stdout
    assert "lm.arpa" not in done.stdout


def test_features_and_labels_of_a_network_come_from_hdf5_files(repository, tmp_path):
    """With the pdfs of both sets in the files, neither is aligned for it."""
    config = yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())
    files = {split: [str(tmp_path / f"{split}.hdf")] for split in ("train", "dev")}
    files["test"] = files["dev"]
    for (path,) in files.values():
        open(path, "w").close()
    config["nnet"] = {
        "hdf5": {"given": {"files": files, "targets": ["pdf"]}},
        "systems": {
            "tdnn": {
                "type": "ce",
                "network": "tests/e2e/tiny_network.yaml",
                "alignments": "mono",
                "features": "given",
            }
        },
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    target = "results/tiny/decode/tdnn/test/lattices.ark"
    done = snakemake(repository, tmp_path, "--configfile", path, "-n", target)
    assert done.returncode == 0, done.stderr
    for split in files:
        assert f"Import given of {split} from HDF5 files" in done.stdout
    assert "results/tiny/streams/given/labels/train" in done.stdout
    assert "Train the network tdnn" in done.stdout
    assert "results/tiny/align/mono" not in done.stdout
