"""The main job on a few minutes of synthetic speech, reruns, and bad input."""

import copy
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from fixtures.documented import in_seconds, prepare, shown, types
from fixtures.documents import RUN_IN_EXPERIMENT, RUN_SERVED, marked
from fixtures.serving_process import serving

from latflow.cli.main import main
from latflow.gmm.source import SpeakerTransforms
from latflow.lang.directory import Lang
from latflow.nnet.model_dir import load_model

pytestmark = pytest.mark.slow

SYSTEMS = ("mono", "tri1", "tri2", "tri3")
NETWORKS = ("logmel", "tdnn", "mmi", "chain", "smbr", "flat")
SEQUENCE, LATTICE_FREE = {"mmi": "tdnn", "smbr": "chain"}, ("chain", "flat")
STATISTICS = re.compile(r"^Job stats:\n.*\n-.*\n((?:\w.*\n)+?)total", re.MULTILINE)


def plan(checkout, *arguments):
    """Names of the rules that would run."""
    done = checkout.run("-n", *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    found = STATISTICS.search(done.stdout + done.stderr)
    lines = found[1].splitlines() if found else []
    return {line.split()[0] for line in lines} - {"all"}


@pytest.fixture(scope="module")
def recipe(repository):
    return yaml.safe_load((repository / "tests/e2e/tiny.yaml").read_text())


@pytest.fixture(scope="module")
def finished(make_checkout, recipe):
    checkout = make_checkout()
    path = checkout.folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    done = checkout.run("--configfile", path)
    assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-3000:]
    return checkout


@pytest.fixture
def results(finished, recipe):
    return finished.folder / "results" / recipe["experiment"]


def test_word_error_rates_make_sense(results):
    table = pd.read_csv(results / "wer.tsv", sep="\t")
    assert list(table.columns[:11]) == [
        "system", "set", "wer", "ins", "del", "sub", "words", "sentences",
        "sentence_errors", "lmwt", "wip",
    ]  # fmt: skip
    rescored = {"tri1.longer", "tri3.longer", "mono.lstm"}
    assert set(table.system) == {*SYSTEMS, *NETWORKS, *rescored}
    assert set(table.set) == {"dev", "test"}
    errors = table.ins + table["del"] + table["sub"]
    assert (abs(100 * errors / table.words - table.wer) < 0.006).all()
    assert (table.wer < 60).all()


def test_training_raises_the_likelihood(results):
    for system in SYSTEMS:
        curve = pd.read_csv(results / "gmm" / system / "iterations.tsv", sep="\t")
        values = curve.log_like_per_frame.dropna()
        assert values.iloc[-1] > values.iloc[0]


def test_online_normalization_begins_with_the_training_set(results):
    frames = results / "streams/online/frames"
    training = (frames / "train/cmvn.ark").read_bytes()
    assert (frames / "dev/cmvn.ark").read_bytes() == training
    assert (frames / "test/cmvn.ark").read_bytes() == training


def test_networks_learn(results):
    for network in NETWORKS:
        lines = (results / "nnet" / network / "log.jsonl").read_text().splitlines()
        epochs = [e for e in map(json.loads, lines) if e["kind"] == "epoch"]
        losses = [epoch["train"]["loss"] for epoch in epochs]
        if len(epochs) > 1:
            assert losses[-1] < losses[0]
        if network in ("mmi", *LATTICE_FREE):
            assert epochs[-1]["train"]["objective"] > epochs[0]["train"]["objective"]
    for network, parent in SEQUENCE.items():
        seed, trained = (load_model(results / "nnet" / n) for n in (parent, network))
        assert trained.meta["parent"].endswith(f"nnet/{parent}")
        assert trained.meta["normalization"] == seed.meta["normalization"]
        assert trained.meta["scales"]["lm_scale"] == 1.0
    assert {path.name for path in (results / "checkpoints").iterdir()} == set(NETWORKS)
    left = (results / "checkpoints").rglob("*.pt")
    assert {path.parent.name for path in left} == {"finished"}


def test_lattice_free_networks_come_from_alignments_or_from_transcripts(results):
    logs = results / "logs"
    ran = {path.relative_to(logs).as_posix() for path in logs.glob("*/*.log")}
    made = {
        "chain": ("build_chain_tree/chain", "align_lattices/chain.train"),
        "flat": ("build_full_tree/flat", "supervise_flat_start/flat.train"),
    }
    for network in LATTICE_FREE:
        model = load_model(results / "nnet" / network)
        assert model.meta["scores"] == "log_likelihoods"
        assert model.network.subsampling == 3
        assert model.meta["scales"]["leaky_hmm"] == 0.1
        assert {f"{job}.log" for job in made[network]} <= ran
        # dev has values of its own, the cross-entropy of dev among them
        assert 0 < model.meta["dev"]["xent"] < 5
        assert model.meta["dev"]["failed_frames"] == 0
    assert "make_denominator/chain.log" in ran
    assert load_model(results / "nnet/smbr").gives_log_likelihoods


def test_report_stands_alone(results):
    html = (results / "report.html").read_text()
    sections = ("tri3.longer", "mono.lstm", "oracle WER", "What a wider beam buys")
    for name in (*SYSTEMS, *NETWORKS, *sections):
        assert name in html
    assert "data:audio/" in html
    for attribute in re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", html):
        assert attribute.startswith(("#", "data:")), attribute[:80]


def test_second_run_does_nothing(finished):
    done = finished.run("--configfile", finished.folder / "tiny.yaml")
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout + done.stderr


TIMES = {
    "wall_seconds", "cpu_seconds", "real_time_factor_per_core", "other_cpu_seconds"
}  # fmt: skip


def contents(folder):
    """Bytes of the files of a folder by name; without what is said of times."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name == "decode.json":
            said = json.loads(path.read_text())
            found[path.name] = [item for item in said.items() if item[0] not in TIMES]
        elif not path.name.startswith(".snakemake"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def test_jobs_that_share_a_set_write_the_bytes_of_one(finished, recipe, make_checkout):
    checkout = make_checkout()
    name = recipe["experiment"]
    results = checkout.results_of(name)
    for folder in ("results", ".snakemake"):
        source, target = finished.folder / folder, checkout.folder / folder
        shutil.copytree(source, target, symlinks=True)
    path = checkout.folder / "shared.yaml"
    shared = {**recipe, "num_jobs": {"extraction": 2, "alignment": 2, "decoding": 2}}
    path.write_text(yaml.safe_dump(shared, sort_keys=False))
    # What is made of these folders is not a target, so that no more is made again.
    for runs in (
        {"decode/tri3/test": "lattices.ark"},
        {"align/tri3/train": "ali.ark", "streams/gmm/features/dev": "meta.json"},
    ):
        whole = {folder: contents(results / folder) for folder in runs}
        for folder in runs:
            shutil.rmtree(results / folder)
        targets = [f"results/{name}/{folder}/{file}" for folder, file in runs.items()]
        done = checkout.run(*targets, "--rerun-triggers", "mtime", "--configfile", path)
        assert done.returncode == 0, done.stderr[-6000:] + done.stdout[-3000:]
        for folder, wanted in whole.items():
            assert contents(results / folder) == wanted, folder
    parts = {path.parent.name for path in results.glob("benchmarks/*_part/*")}
    assert parts == {
        "align_adapted_part", "decode_adapted_part", "extract_features_part",
    }  # fmt: skip
    assert not [path for path in (results / "parts").rglob("*") if path.is_file()]


def changed(finished, recipe, tmp_path, **sections):
    path = tmp_path / "changed.yaml"
    merged = {**recipe}
    for name, values in sections.items():
        nested = isinstance(values, dict)
        merged[name] = {**recipe.get(name, {}), **values} if nested else values
    path.write_text(yaml.safe_dump(merged, sort_keys=False))
    return plan(finished, "--configfile", path)


DECODING = {
    "decode_lattices", "decode_adapted", "decode_network", "rescore_lattices",
    "rescore_n_best", "tune_scales", "sweep_beams", "score_wer",
    "summarize_wer",
}  # fmt: skip
REPORT = {"summarize_cost", "make_report"}
SCORING = {"score_wer", "summarize_wer", *REPORT}


def test_changed_beam_reruns_decoding_and_what_adapts_to_speakers(
    finished, recipe, tmp_path
):
    planned = changed(finished, recipe, tmp_path, decode={"beam": 11.5})
    # Transforms of dev's speakers come from its decoding; tdnn and mmi read them.
    adapted = {"adapt_frames", "train_network", "train_sequence"}
    assert planned == {*DECODING, *REPORT, *adapted}


def test_changed_bootstrap_reruns_scoring_only(finished, recipe, tmp_path):
    planned = changed(finished, recipe, tmp_path, score={"bootstrap": {"samples": 333}})
    assert planned == SCORING


def test_changed_code_reruns_what_reaches_it(finished):
    module = finished.folder / "src/latflow/scoring/score.py"
    text = module.read_text()
    recipe = finished.folder / "tiny.yaml"
    module.write_text(text + "\n# a comment\n")
    assert not plan(finished, "--configfile", recipe)
    ahead = "ahead=2 * job.threads"
    assert ahead in text
    module.write_text(text.replace(ahead, "ahead=3 * job.threads"))
    planned = plan(finished, "--configfile", recipe)
    module.write_text(text)
    assert planned == SCORING


def test_adapted_systems_leave_transforms_of_their_speakers(results):
    for folder in ("gmm/tri3", "align/tri3/train", "decode/tri3/test"):
        transforms = SpeakerTransforms.load(results / folder / "trans.ark")
        assert len(transforms) > 0
    assert (results / "gmm/tri3/final.alimdl").is_file()


def test_pronunciations_come_from_alignments(results):
    lang = Lang.load(results / "lang_tri1")
    lang.validate()
    assert (results / "lang_tri1/silprob.txt").is_file()
    plain = (results / "lang/L.fst").read_bytes()
    assert (results / "lang_tri1/L.fst").read_bytes() != plain


def test_lattices_are_measured(results):
    for system in (*SYSTEMS, *NETWORKS, "tri3.longer"):
        path = results / "score" / system / "test" / "lattices.json"
        measured = json.loads(path.read_text())
        assert 0 <= measured["oracle_wer"] <= measured["best_wer"]
        assert measured["depth"] >= 1
    beams = pd.read_csv(results / "tune/flat/beams.tsv", sep="\t")
    assert beams.beam.tolist() == [6, 12]


def test_named_target_reruns_alone(finished, recipe):
    lattices = finished.folder / "results" / recipe["experiment"] / "gmm/mono/final.mdl"
    assert lattices.is_file()
    planned = plan(
        finished, "--configfile", finished.folder / "tiny.yaml",
        "--forcerun", "train_mono", "--", "gmm_mono",
    )  # fmt: skip
    assert planned == {"train_mono", "gmm_mono"}


def test_another_experiment_runs_what_differs_alone(finished, recipe, tmp_path):
    # Packages and what sums up an experiment are its own.
    own = {"package_model", "score_served", "summarize_wer", *REPORT}
    assert changed(finished, recipe, tmp_path, experiment="other") <= own
    nnet = copy.deepcopy(recipe["nnet"])
    nnet["systems"]["chain"]["training"]["epochs"] = 4
    after = {
        "train_lfmmi", "train_sequence", "decode_network", "tune_scales", "score_wer",
        "summarize_wer",
    }  # fmt: skip
    planned = changed(finished, recipe, tmp_path, experiment="other", nnet=nnet)
    assert after <= planned <= {*after, *own, "align_network"}
    assert finished.run("--configfile", finished.folder / "tiny.yaml").returncode == 0


def test_time_and_memory_of_each_rule_are_kept(results):
    files = list((results / "benchmarks").rglob("*.jsonl"))
    assert files
    for path in files:
        row = json.loads(path.read_text().splitlines()[0])
        assert row["s"] >= 0


@pytest.fixture
def bad_corpus(finished, corpora, tmp_path):
    """A Kaldi data directory to spoil, and a recipe that uses it."""
    data = tmp_path / "data"
    shutil.copytree(corpora / "yesno" / "test", data)
    source = {"type": "kaldi", "path": str(data), "speaker": "single"}
    recipe = {
        "experiment": "bad",
        "corpus": {"train": source, "dev": source, "test": {"test": source}},
        "lang": {"lexicon": str(corpora / "yesno" / "lexicon.txt")},
        "lm": {"type": "uniform"},
    }
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))

    def run(target):
        shutil.rmtree(finished.folder / "results" / "bad", ignore_errors=True)
        done = finished.run("--configfile", path, "--", target)
        return done, finished.folder / "results" / "bad"

    return data, run


def first_audio(data):
    return sorted((data / "audio").iterdir())[0]


def spoil_missing(data):
    first_audio(data).unlink()


def spoil_truncated(data):
    audio = first_audio(data)
    audio.write_bytes(audio.read_bytes()[:5000])


def spoil_empty(data):
    first_audio(data).write_bytes(b"")


def spoil_unknown(data):
    with (data / "text").open("a") as stream:
        stream.write("zzz YES\n")


def spoil_encoding(data):
    (data / "text").write_bytes((data / "text").read_bytes() + b"\xff\xfe\n")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (spoil_missing, "flac"),
        (spoil_truncated, "flac"),
        (spoil_empty, "flac"),
        (spoil_unknown, "zzz"),
        (spoil_encoding, "UTF-8"),
    ],
)
def test_bad_corpus_stops_the_workflow_with_one_line(bad_corpus, spoil, named):
    data, run = bad_corpus
    spoil(data)
    done, results = run("corpus")
    assert done.returncode != 0
    logs = list((results / "logs" / "prepare_corpus").glob("*.log"))
    told = [line for log in logs for line in log.read_text().splitlines()]
    errors = [line for line in told if " ERROR " in line]
    assert errors
    assert all(named in line and str(data) in line for line in errors)
    assert not any("Traceback" in line for line in told)
    assert not list(results.glob("corpus/*/cuts.jsonl.gz"))


DOCUMENTS = [
    *("README", "kaldi", "models", "network_data", "plan", "reproducibility"),
    *("serving", "simulation", "training", "triton", "tutorial"),
]


@pytest.fixture
def beside(finished, monkeypatch):
    """The folder of the experiment as it was, after what a test has made there."""
    monkeypatch.chdir(finished.folder)
    places = [finished.folder / name for name in (".", "results", "config/recipes")]
    before = {path for place in places for path in place.iterdir()}
    yield
    shutil.rmtree(finished.folder.parent / "models-env", ignore_errors=True)
    for path in {path for place in places for path in place.iterdir()} - before:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.usefixtures("beside")
def test_documented_commands_run(finished, recipe, results, capfd, document):
    prepare(document, results, recipe)
    for command in shown(finished.repository, document):
        assert types(command) == 0, (command, capfd.readouterr().err[-2000:])
    said = capfd.readouterr().out
    if document == "serving":
        written = {path.name for path in Path("texts").rglob("*.*")}
        forms = ("txt", "json", "srt")
        assert written >= {f"{x}.{form}" for x in ("one", "more") for form in forms}
    if document == "tutorial":
        assert "train: 64 utterances" in said  # init
        assert "0 errors, " in said  # doctor
        assert "train_lfmmi" in said  # run -n


@pytest.mark.usefixtures("beside")
def test_documented_clients_find_the_documented_server(
    finished, recipe, results, capsys
):
    prepare("serving", results, recipe)
    Path("data").mkdir()
    for name in ("audio", "data/test"):
        Path(name).symlink_to(finished.folder / "results/mine/corpus/test/audio")
    servers, clients = [], []
    for page in ("README", "load-test"):
        for words in shown(finished.repository, page, RUN_SERVED):
            if words[0] == "serve":
                servers.append(words[1:])
            elif words[0] == "load-test":
                clients.append(words)
            else:
                assert main(words) == 0, (words, capsys.readouterr().err[-2000:])
    assert len(clients) == 5
    (options,) = servers
    with serving(*options) as (process, address):
        url = f"ws://localhost:{address.rpartition(':')[2].strip('/')}"
        for words in clients:
            client = in_seconds([words[0], url, *words[2:]])
            if "--pid" in client:
                client[client.index("--pid") + 1] = str(process.pid)
            status, printed = main(client), capsys.readouterr()
            # In so few seconds, beside other tests, it may find no capacity, and no
            # end of an utterance; the client that waits for all finds them.
            is_told = "--seconds" in client and (
                "capacity " in printed.out or "no utterance ended" in printed.err
            )
            assert status == 0 or is_told, (client, printed.err[-2000:])


def test_all_marked_documents_are_run(repository):
    assert marked(repository, RUN_IN_EXPERIMENT) == DOCUMENTS
    assert marked(repository, RUN_SERVED) == ["README", "load-test"]
