"""Lhotse recipes on a made-up tree of LibriSpeech's shape."""

import functools
import http.server
import inspect
import socket
import tarfile
import threading

import lhotse.recipes
import numpy as np
import pytest
import soundfile
import yaml
from lhotse import CutSet

from latflow.corpus.download import missing_resource
from latflow.corpus.options import CorpusOptions
from latflow.corpus.prepare import prepare_corpus
from latflow.corpus.recipes import recipe_manifests
from latflow.errors import UserError
from latflow.ledger import read_ledger
from latflow.options import read_options

TEXTS = {
    ("train-clean-5", "19", "198"): ["NORTHANGER ABBEY", "THIS LITTLE WORK"],
    ("train-clean-5", "26", "495"): ["MARTHA IT SEEMS", "GOOD DAY", "TO YOU"],
    ("dev-clean-2", "84", "121"): ["GO DO YOU HEAR"],
}


@pytest.fixture
def tree(tmp_path):
    rng = np.random.default_rng(0)
    root = tmp_path / "root"
    for (part, speaker, chapter), texts in TEXTS.items():
        folder = root / "LibriSpeech" / part / speaker / chapter
        folder.mkdir(parents=True)
        lines = []
        for number, text in enumerate(texts):
            utt_id = f"{speaker}-{chapter}-{number:04d}"
            samples = (rng.standard_normal(4000 + 100 * number) * 999).astype(np.int16)
            soundfile.write(folder / f"{utt_id}.flac", samples, 16000)
            lines.append(f"{utt_id} {text}\n")
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return root


@pytest.fixture
def resolve(repository):
    def make(**source):
        values = {
            "train": {"type": "lhotse", **source},
            "test": {"t": {"type": "synthetic"}},
        }
        return read_options(CorpusOptions, values, "corpus").train

    return make


def prepare(source, out, **how):
    how = {"seed": 1, "threads": 2, "max_skipped_fraction": 0.5, **how}
    prepare_corpus(source, "train", out, **how)
    return list(CutSet.from_jsonl_lazy(out / "cuts.jsonl.gz"))


@pytest.mark.parametrize("recipe", ["mini_librispeech", "librispeech"])
def test_librispeech_tree_is_prepared(tree, resolve, tmp_path, recipe):
    source = resolve(recipe=recipe, root=str(tree), parts=["train-clean-5"])
    cuts = prepare(source, tmp_path / "out")
    assert [cut.id for cut in cuts] == [
        "19-198-0000", "19-198-0001", "26-495-0000", "26-495-0001", "26-495-0002",
    ]  # fmt: skip
    assert [cut.supervisions[0].speaker for cut in cuts] == ["19"] * 2 + ["26"] * 3
    assert cuts[2].supervisions[0].text == "MARTHA IT SEEMS"
    assert cuts[4].load_audio().shape == (1, 4200)


def test_parts_are_joined_and_the_inner_folder_may_be_named(tree, resolve, tmp_path):
    parts = ["train-clean-5", "dev-clean-2"]
    root = str(tree / "LibriSpeech")
    source = resolve(recipe="mini_librispeech", root=root, parts=parts)
    cuts = prepare(source, tmp_path / "out")
    assert {cut.supervisions[0].speaker for cut in cuts} == {"19", "26", "84"}


def test_utterance_that_lhotse_passes_over_is_found_again(tree, resolve, tmp_path):
    (tree / "LibriSpeech/train-clean-5/26/495/26-495-0001.flac").unlink()
    options = {"recipe": "librispeech", "root": str(tree), "parts": ["train-clean-5"]}
    match = r"26-495.trans.txt: 26-495-0001: its audio file does not exist"
    with pytest.raises(UserError, match=match):
        prepare(resolve(**options), tmp_path / "out")
    source = resolve(**options, on_bad_utterance="skip")
    assert len(prepare(source, tmp_path / "out")) == 4
    (entry,) = read_ledger(tmp_path / "out/ledger.jsonl")
    assert entry.utterance == "26-495-0001"


def test_damaged_audio_is_one_clear_line(tree, resolve, tmp_path):
    path = tree / "LibriSpeech/train-clean-5/26/495/26-495-0001.flac"
    path.write_bytes(path.read_bytes()[:-900])
    source = resolve(recipe="librispeech", root=str(tree), parts=["train-clean-5"])
    with pytest.raises(UserError, match="26-495-0001: audio .*(corrupt|cut short)"):
        prepare(source, tmp_path / "out")
    path.write_bytes(b"")
    with pytest.raises(
        UserError, match="Lhotse's preparation of librispeech"
    ) as caught:
        prepare(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_missing_corpus_and_parts_are_named(tree, resolve, tmp_path):
    source = resolve(recipe="librispeech", root=str(tmp_path / "none"), parts=["x"])
    with pytest.raises(
        UserError, match="no corpus librispeech here - .*download: true"
    ):
        prepare(source, tmp_path / "out")
    source = resolve(recipe="librispeech", root=str(tree), parts=["train-clean-100"])
    with pytest.raises(UserError, match="no part train-clean-100"):
        prepare(source, tmp_path / "out")


def test_unknown_recipe_is_named(resolve, tmp_path):
    source = resolve(recipe="librispeach", root=str(tmp_path))
    with pytest.raises(UserError, match="no recipe function prepare_librispeach"):
        prepare(source, tmp_path / "out")


def test_failed_download_is_one_clear_line(resolve, tmp_path, monkeypatch):
    import lhotse.recipes

    def no_network(target_dir, dataset_parts):
        assert dataset_parts == ["dev-clean-2"]
        raise OSError("Name or service not known")

    monkeypatch.setattr(lhotse.recipes, "download_librispeech", no_network)
    source = resolve(
        recipe="mini_librispeech",
        root=str(tmp_path),
        parts=["dev-clean-2"],
        download=True,
    )
    with pytest.raises(UserError, match="download of mini_librispeech failed.*network"):
        prepare(source, tmp_path / "out")


def test_recipe_without_parts_gives_its_one_set(tmp_path, monkeypatch):
    manifests = {"recordings": "r", "supervisions": "s"}
    monkeypatch.setattr(
        lhotse.recipes, "prepare_ljspeech", lambda corpus_dir: manifests
    )
    found = list(recipe_manifests("ljspeech", tmp_path, [], download=False))
    assert found == [("", ("r", "s"))]
    with pytest.raises(UserError, match="no part train - remove the key parts"):
        list(recipe_manifests("ljspeech", tmp_path, ["train"], download=False))


@pytest.fixture
def resources(tmp_path):
    """A folder, and the address under which it is served as OpenSLR serves its own."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Silent, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_a_part_of_librispeech_is_downloaded(tree, resolve, resources, tmp_path):
    folder, url = resources
    (folder / "31").mkdir()
    with tarfile.open(folder / "31/dev-clean-2.tar.gz", "w:gz") as tar:
        tar.add(tree / "LibriSpeech/dev-clean-2", "LibriSpeech/dev-clean-2")
    source = resolve(
        recipe="mini_librispeech",
        root=str(tmp_path / "fetched"),
        parts=["dev-clean-2"],
        download=True,
        arguments={"base_url": url},
    )
    cuts = prepare(source, tmp_path / "out")
    assert [cut.supervisions[0].text for cut in cuts] == ["GO DO YOU HEAR"]


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="an old Python")
def test_an_archive_links_to_nothing_outside(resolve, resources, tmp_path):
    folder, url = resources
    (folder / "31").mkdir()
    with tarfile.open(folder / "31/dev-clean-2.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("LibriSpeech/dev-clean-2")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
    source = resolve(
        recipe="mini_librispeech",
        root=str(tmp_path / "fetched"),
        parts=["dev-clean-2"],
        download=True,
        arguments={"base_url": url},
    )
    with pytest.raises(UserError, match="the download of mini_librispeech failed"):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "fetched/LibriSpeech/dev-clean-2").is_symlink()


@pytest.mark.parametrize("part", ["train", "test"])
def test_yesno_is_downloaded(repository, resources, tmp_path, part):
    folder, url = resources
    rng = np.random.default_rng(0)
    with tarfile.open(folder / "waves_yesno.tar.gz", "w:gz") as tar:
        for number in range(60):
            name = "_".join(f"{number:08b}") + ".wav"
            samples = (rng.standard_normal(4000) * 999).astype(np.int16)
            soundfile.write(tmp_path / name, samples, 8000)
            tar.add(tmp_path / name, f"waves_yesno/{name}")
    recipe = repository / "config/recipes/yesno_download.yaml"
    section = yaml.safe_load(recipe.read_text())["corpus"]
    for values in (section["train"], section["test"]["test"]):
        values["root"] = str(tmp_path / "fetched")
        values["arguments"] = {"url": f"{url}/waves_yesno.tar.gz"}
    options = read_options(CorpusOptions, section, "corpus")
    source = options.train if part == "train" else options.test["test"]
    cuts = prepare(source, tmp_path / "out")
    assert len(cuts) == 30
    first = "0_0_0_0_0_0_0_0" if part == "train" else "0_0_0_0_0_0_0_1"
    texts = {cut.supervisions[0].id: cut.supervisions[0].text for cut in cuts}
    assert texts[first].split() == ["NO" if c == "0" else "YES" for c in first[::2]]


def test_arguments_that_a_recipe_does_not_have_are_refused(tree, resolve, tmp_path):
    source = resolve(recipe="librispeech", root=str(tree), arguments={"colour": 1})
    match = "librispeech has no argument colour - it has .*dataset_parts"
    with pytest.raises(UserError, match=match):
        prepare(source, tmp_path / "out")


def test_what_a_recipe_raises_is_one_line(tmp_path, monkeypatch):
    def prepare_heroico(speech_dir, transcript_dir):
        assert str(transcript_dir) == "texts"
        raise TypeError(f"nothing in {speech_dir.name}\nat all")

    monkeypatch.setattr(lhotse.recipes, "prepare_heroico", prepare_heroico)
    arguments = {"transcript_dir": "texts"}
    with pytest.raises(UserError, match="heroico.*TypeError: nothing in sp - ") as told:
        (tmp_path / "sp").mkdir()
        list(
            recipe_manifests(
                "heroico", tmp_path / "sp", [], download=False, arguments=arguments
            )
        )
    assert "at all" not in str(told.value)


def test_an_argument_called_splits_may_be_a_path(tmp_path, monkeypatch):
    """As of Lhotse's iwslt22_ta, whose parts are keys of what it returns."""
    sets = {name: {"recordings": name, "supervisions": 2} for name in ("train", "dev")}

    def prepare_iwslt22_ta(corpus_dir, splits: str):
        assert (corpus_dir, splits) == (tmp_path, "lists")
        return sets

    monkeypatch.setattr(lhotse.recipes, "prepare_iwslt22_ta", prepare_iwslt22_ta)
    given = {"download": False, "arguments": {"splits": "lists"}}
    found = list(recipe_manifests("iwslt22_ta", tmp_path, ["dev", "train"], **given))
    assert found == [("dev", ("dev", 2)), ("train", ("train", 2))]


def test_every_recipe_can_be_given_what_it_needs(tmp_path, monkeypatch):
    """Arguments without default reach each; each says in a line what is missing."""

    def no_network(*_):
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    names = [n.removeprefix("prepare_") for n in dir(lhotse.recipes) if "prepare_" in n]
    told = {}
    for name in names:
        function = getattr(lhotse.recipes, f"prepare_{name}")
        parameters = inspect.signature(function).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty][1:]
        arguments = dict.fromkeys(needed, str(tmp_path / "empty"))
        given = {"download": False, "arguments": arguments}
        try:
            list(recipe_manifests(name, tmp_path / "empty", [], **given))
        except UserError as error:
            told[name] = str(error)
    assert len(names) > 90
    assert len(told) > 50
    assert [name for name, line in told.items() if "\n" in line] == []
    assert [name for name, line in told.items() if "required positional" in line] == []


def test_parts_that_a_recipe_does_not_have_are_refused(tmp_path, monkeypatch):
    sets = {"train": {"recordings": 1, "supervisions": 2}}
    monkeypatch.setattr(lhotse.recipes, "prepare_yesno", lambda corpus_dir: sets)
    with pytest.raises(UserError, match="no part dev - its parts are train"):
        (tmp_path / "waves_yesno").mkdir()
        list(recipe_manifests("yesno", tmp_path, ["dev"], download=False))


def test_recipe_with_several_sets_asks_for_one(tmp_path, monkeypatch):
    sets = {"train": {"recordings": 1, "supervisions": 2}, "test": {"recordings": 3}}
    monkeypatch.setattr(lhotse.recipes, "prepare_yesno", lambda corpus_dir: sets)
    with pytest.raises(UserError, match="has the parts train, test"):
        list(recipe_manifests("yesno", tmp_path, [], download=False))


@pytest.mark.parametrize("name", ["librispeech-lexicon.txt", "3-gram.pruned.1e-7.arpa"])
def test_missing_files_of_openslr_are_explained(name):
    error = missing_resource(f"data/{name}")
    assert "OpenSLR resource 11" in error.remedy
    assert "OpenSLR" not in missing_resource("data/mine.txt").remedy
