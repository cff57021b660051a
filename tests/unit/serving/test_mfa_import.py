"""Acoustic models of Montreal Forced Aligner, made here in each of its layouts."""

import shutil
import zipfile

import numpy as np
import pytest
from conftest import shared_folder
from fixtures.mfa_model import (
    SPEECH,
    old_model,
    old_phones,
    random_model,
    write_files,
    write_meta,
    write_phones,
    zipped,
)

from latflow.cli.main import main
from latflow.corpus.options import FolderSource
from latflow.corpus.prepare import prepare_corpus
from latflow.errors import UserError
from latflow.features.cmvn_options import NoCmvn, SpeakerCmvn
from latflow.gmm.options import AlignAdaptedOptions
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.transducer_g2p import TransducerG2p
from latflow.serving.aligning import AlignmentTask, align_package
from latflow.serving.mfa_import import import_mfa
from latflow.serving.package import (
    GmmPackage,
    Model,
)
from latflow.serving.package_info import read_info

META = {
    "phones": list(SPEECH),
    "version": "2.0.6",
    "architecture": "gmm-hmm",
    "features": {"feature_type": "mfcc", "uses_deltas": True},
    "oov_phone": "spn",
    "optional_silence_phone": "sil",
}


def new_model(folder, *, names=None, dim=39, lda=None, **meta):
    """Write the files of a small model of MFA 2.x, without markers of position."""
    names = names or old_phones(("sil", "spn"), marks=())
    tree, model = random_model(names, 2, dim=dim)
    write_files(folder, tree, model, lda=lda)
    write_meta(folder, {**META, **meta})
    return folder


def imported(source, tmp_path):
    import_mfa(source, tmp_path / "package")
    return GmmPackage.load(tmp_path / "package")


# -- 1.x ------------------------------------------------------------------------------


def test_model_of_1x_has_its_phones_in_order(tmp_path):
    source = zipped(old_model(tmp_path / "m"), tmp_path / "old.zip")
    found = imported(source, tmp_path)
    lang = Lang.load(tmp_path / "package/lang")
    assert [lang.phones[n] for n in range(1, 8)] == [
        *("sil", "sil_B", "sil_E", "sil_I", "sil_S", "sp", "sp_B"),
    ]
    assert lang.phone_ids["ah_B"] == 16
    assert lang.phones[lang.optional_silence] == "sp"
    assert lang.word_boundary is not None
    assert lang.word_boundary[16] == "begin"
    assert lang.oov_word == "<unk>"
    assert lang.lexicon == {"<unk>": [(1.0, ("spn",))]}
    assert found.info.name == "old"
    front_end = found.info.front_end
    assert (front_end.high_freq, front_end.low_freq) == (7800.0, 20.0)
    assert front_end.snip_edges
    assert found.info.sample_rate == 16000
    assert found.info.cmvn == SpeakerCmvn()
    assert not found.system.is_speaker_adapted
    with pytest.raises(UserError, match="recognizes nothing: it has no decoding graph"):
        Model.load(tmp_path / "package")


def test_features_that_1x_adapts_are_adapted_from_its_only_model(tmp_path):
    """Its archives have no `final.alimdl`: Kaldi, too, takes `final.mdl` then."""
    found = imported(old_model(tmp_path / "m", fmllr=True), tmp_path)
    assert found.system.is_speaker_adapted
    first, second = found.system.alignment_model.gmms, found.system.model.gmms
    np.testing.assert_array_equal(first.means_invvars, second.means_invvars)


def test_model_of_0x_and_10_does_not_say_that_it_adapts(tmp_path):
    folder = old_model(tmp_path / "m")
    meta = {"features": "mfcc+deltas", "phones": list(SPEECH), "version": "1.0.0"}
    write_meta(folder, meta, name="meta.yaml")
    assert imported(folder, tmp_path).system.is_speaker_adapted


# -- 2.x and 3.x ----------------------------------------------------------------------


def test_options_of_features_are_taken_over(tmp_path):
    features = {
        **META["features"], "snip_edges": False, "dither": 0.0, "frame_shift": 5,
        "frame_length": 20, "low_frequency": 60, "high_frequency": 3700,
        "sample_frequency": 8000, "num_mel_bins": 20, "num_coefficients": 12,
        "cepstral_lifter": 20, "preemphasis_coefficient": 0.9, "use_energy": True,
        "uses_cmvn": False,
    }  # fmt: skip
    source = new_model(tmp_path / "m", dim=36, features=features)
    info = imported(source, tmp_path).info
    expected = {
        "snip_edges": False, "dither": 0.0, "frame_shift_ms": 5.0,
        "frame_length_ms": 20.0, "low_freq": 60.0, "high_freq": 3700.0,
        "num_mel_bins": 20, "num_ceps": 12, "cepstral_lifter": 20.0,
        "preemphasis": 0.9, "use_energy": True,
    }  # fmt: skip
    found = info.front_end.values()
    assert {key: found[key] for key in expected} == expected
    assert info.sample_rate == 8000
    assert info.cmvn == NoCmvn()


def test_matrix_tells_of_splicing_whatever_the_options_say(tmp_path):
    lda = np.random.default_rng(0).normal(size=(40, 91)).astype(np.float32)
    features = {**META["features"], "uses_splices": False}
    source = new_model(tmp_path / "m", dim=40, lda=lda, features=features)
    transform = imported(source, tmp_path).system.transform
    steps = transform.to_config()["transforms"]
    assert (steps[0]["left"], steps[0]["right"]) == (3, 3)
    frames = np.random.default_rng(1).normal(size=(9, 13)).astype(np.float32)
    made = transform(frames)[4]
    np.testing.assert_allclose(made, lda @ frames[1:8].ravel(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("told", ["phones.txt", "phone_mapping"])
def test_ids_of_phones_are_those_that_are_told(tmp_path, told):
    names = ["spn", "sil", "w", "uw", "t", "n", "ah"]
    source = new_model(tmp_path / "m", names=names)
    if told == "phones.txt":
        write_phones(source, [*names, "#0", "#1"])
    else:
        mapping = {name: number for number, name in enumerate(["<eps>", *names])}
        write_meta(source, {**META, "phone_mapping": mapping})
    import_mfa(source, tmp_path / "package")
    lang = Lang.load(tmp_path / "package/lang")
    assert [lang.phones[n] for n in range(1, 8)] == names
    assert sorted(lang.silence_phones) == [1, 2]
    assert lang.word_boundary is None


def test_groups_of_phones_share_roots(tmp_path):
    groups = {"vowels": ["ah", "uw"], "other": ["n", "zz"]}
    source = new_model(tmp_path / "m", phone_groups=groups)
    import_mfa(source, tmp_path / "package")
    lang = Lang.load(tmp_path / "package/lang")
    names = [sorted(lang.phones[p] for p in line) for line in lang.phone_sets]
    assert names == [["sil"], ["spn"], ["ah", "uw"], ["n"], ["t"], ["w"]]


def test_silence_is_as_likely_as_the_model_says(tmp_path):
    """Words of a dictionary without numbers have the model's; edges always."""
    source = new_model(
        tmp_path / "m",
        silence_probability=0.3,
        initial_silence_probability=0.8,
        final_silence_correction=1.5,
        final_non_silence_correction=None,
    )
    import_mfa(source, tmp_path / "package")
    text = (tmp_path / "package/lang/silprob.txt").read_text()
    assert text == "<s> 0.8\n</s>_s 1.5\n</s>_n 1\noverall 0.3\n"
    (tmp_path / "words.txt").write_text("two\tt uw\none\t0.9\t0.2\t1.1\t0.7\tw ah n\n")
    task = AlignmentTask(
        tmp_path / "package", tmp_path / "cuts.jsonl.gz", tmp_path / "words.txt",
        LangOptions(), 1, 0.0,
    )  # fmt: skip
    (tmp_path / "cuts.jsonl.gz").write_bytes(
        b"\x1f\x8b\x08" + b"\0" * 7 + b"\x03\0" + b"\0" * 8
    )
    task.language(tmp_path / "out")
    rows = (tmp_path / "out/lang/lexiconp_silprob.txt").read_text().splitlines()
    assert "two 1 0.3 1 1 t uw" in rows
    assert "one 1 0.2 1.1 0.7 w ah n" in rows
    assert (tmp_path / "out/lang/silprob.txt").read_text() == text


# -- as another's package -------------------------------------------------------------


def as_mfa(experiment, system, folder):
    """Write a system of ours as MFA 3 would."""
    files = experiment.root / "gmm" / system
    folder.mkdir()
    names = {"final.mat": "lda.mat"}
    for name in ("final.mdl", "final.alimdl", "tree", "final.mat"):
        if (files / name).is_file():
            shutil.copyfile(files / name, folder / names.get(name, name))
    lang = Lang.load(experiment.root / "lang")
    shutil.copyfile(lang.folder / "phones.txt", folder / "phones.txt")
    speech = {lang.base_phone(phone) for phone in lang.nonsilence_phones}
    features = {"feature_type": "mfcc", "sample_frequency": 8000, "high_frequency": 0}
    meta = {
        **META, "version": "3.2.0", "phones": sorted(speech), "features": features,
        "optional_silence_phone": "SIL", "oov_phone": "SPN",
    }  # fmt: skip
    write_meta(folder, meta)
    return folder


@pytest.mark.parametrize("system", ["mono", "sat"])
def test_imported_model_aligns_as_the_system_that_it_is(adapted, tmp_path, system):
    folder = tmp_path / "audio"
    folder.mkdir()
    for name in list(adapted.audio)[:2]:
        shutil.copy(adapted.audio[name], folder)
        (folder / f"{name}.txt").write_text(adapted.texts[name])
    limits = {"threads": 1, "max_skipped_fraction": 0.0}
    source = FolderSource(path=str(folder), speaker="single")
    prepare_corpus(source, "train", tmp_path / "corpus", seed=1, **limits)
    archive = zipped(
        as_mfa(adapted, system, tmp_path / "files"), tmp_path / "m.zip", ""
    )
    import_mfa(archive, tmp_path / "theirs")
    adapted.package(tmp_path / "ours", system=system, cmvn=SpeakerCmvn(), offline=True)
    for package in ("ours", "theirs"):
        task = AlignmentTask(
            package_dir=tmp_path / package,
            cuts=tmp_path / "corpus/cuts.jsonl.gz",
            lexicon=adapted.root / "lexicon.txt",
            lang=LangOptions(),
            **limits,
        )
        out = tmp_path / f"{package}_ali"
        align_package(task, out_dir=out, options=AlignAdaptedOptions())
    names = ["ali.ark", "trans.ark"] if system == "sat" else ["ali.ark"]
    for name in names:
        found = (tmp_path / "theirs_ali" / name).read_bytes()
        assert found == (tmp_path / "ours_ali" / name).read_bytes()


def test_imported_model_goes_on_to_kaldi(tmp_path):
    import_mfa(old_model(tmp_path / "m", fmllr=True), tmp_path / "package")
    package = tmp_path / "package"
    given = [str(package / "model"), str(package / "lang"), str(tmp_path / "exp")]
    assert main(["export-kaldi", "system", *given]) == 0
    names = {path.name for path in (tmp_path / "exp").iterdir()}
    assert {"final.mdl", "final.alimdl", "tree", "delta_opts", "phones.txt"} <= names


# -- where models lie, and what is refused ---------------------------------------------


@pytest.mark.parametrize("root", ["MFA_ROOT_DIR", "HOME"])
def test_names_are_those_of_the_folder_of_downloads(tmp_path, monkeypatch, root):
    monkeypatch.delenv("MFA_ROOT_DIR", raising=False)
    monkeypatch.setenv(root, str(tmp_path))
    top = tmp_path / ("" if root == "MFA_ROOT_DIR" else "Documents/MFA")
    cache = top / "pretrained_models/acoustic"
    cache.mkdir(parents=True)
    zipped(old_model(tmp_path / "m"), cache / "two_words.zip")
    monkeypatch.chdir(tmp_path)
    assert main(["import-mfa", "two_words", "package"]) == 0
    assert read_info(tmp_path / "package").name == "two_words"
    with pytest.raises(UserError, match=r"other: no such model - .*pretrained_models"):
        import_mfa("other", tmp_path / "package")


def test_pitch_is_refused_where_the_model_takes_it(tmp_path, caplog):
    features = {**META["features"], "use_pitch": True, "use_voicing": True}
    lda = np.zeros((40, 105), np.float32)
    source = new_model(tmp_path / "m", dim=40, lda=lda, features=features)
    with pytest.raises(UserError, match="takes pitch beside 13 cepstra, which is not"):
        import_mfa(source, tmp_path / "package")
    source = new_model(tmp_path / "n", features=features)
    import_mfa(source, tmp_path / "package")
    assert "pitch is named, but the model takes none" in caplog.text


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"architecture": "nnet3"}, "its architecture is nnet3"),
        ({"features": {"feature_type": "plp"}}, "feature_type is plp"),
        ({"features": "plp"}, "features of type 'plp'"),
        ({"features": {"uses_voiced": True}}, "uses_voiced is True"),
        ({"features": {"frame_shift": "x"}}, "frame_shift_ms"),
        ({"features": {"sample_frequency": 1e9}}, "sample_frequency is 1000000000.0"),
        ({"features": {"num_coefficients": 20}}, "dimension 20, and its files take 13"),
        ({"phones": ["a b"]}, "'a b' is the name of a phone"),
        ({"phones": "ab"}, "its phones are not a list"),
        ({"phones": ["a"]}, "7 phones in final.mdl, which its 1 phones"),
        (
            {"oov_phone": "xx", "other_noise_phone": "spn"},
            "it has no phone xx",
        ),
        ({"phone_mapping": {"a": "x"}}, "phone_mapping has something else"),
        ({"phone_mapping": {"sil": 1, "a": 9}}, "only"),
        ({"silence_probability": 1.0}, "silence_probability is 1.0"),
        ({"final_silence_correction": "x"}, "final_silence_correction is 'x'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_a_line(tmp_path, meta, message):
    source = new_model(tmp_path / "m", **meta)
    with pytest.raises(UserError) as caught:
        import_mfa(source, tmp_path / "package")
    assert message in str(caught.value)
    assert str(source) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "package").exists()


def test_rules_and_unknown_options_are_told(tmp_path, caplog):
    features = {**META["features"], "silence_weight": 0.5, "warp": 3}
    source = new_model(tmp_path / "m", features=features)
    (source / "rules.yaml").write_text("rules: []\n")
    import_mfa(source, tmp_path / "package")
    assert "phonological rules (rules.yaml) are not applied" in caplog.text
    assert "not known here, passed over: warp" in caplog.text
    assert "silence_weight is 0.5 there, and 0.0 here" in caplog.text


def test_model_of_another_tree_is_refused(tmp_path):
    source = new_model(tmp_path / "m")
    tree, _ = random_model(old_phones(("sil", "spn"), ("ah", "n", "t", "uw"), ()), 2)
    tree.save(source / "tree")
    with pytest.raises(UserError, match=r"m: final\.mdl: .*but the tree beside it"):
        import_mfa(source, tmp_path / "package")
    assert isinstance(ContextDependency.load(source / "tree"), ContextDependency)


def test_archive_writes_nothing_outside_itself(tmp_path):
    """Only the files of a model are taken, by their names alone."""
    folder = old_model(tmp_path / "m")
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"../../up/{file.name}")
        archive.writestr("../../../evil.txt", "x")
        archive.writestr("/etc/final.alimdl.txt", "x")
        archive.writestr("__MACOSX/model/._final.mdl", "x")
    import_mfa(path, tmp_path / "package")
    assert not list(tmp_path.parent.rglob("evil.txt"))
    assert not (tmp_path.parent / "up").exists()


def test_bombs_and_two_models_are_refused(tmp_path, monkeypatch):
    folder = old_model(tmp_path / "m")
    two = tmp_path / "two.zip"
    with zipfile.ZipFile(two, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"a/{file.name}")
            archive.write(file, f"b/{file.name}")
    with pytest.raises(UserError, match=r"two\.zip: 2 folders with final\.mdl"):
        import_mfa(two, tmp_path / "package")
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "tree", "tree")
        archive.writestr("final.mdl", b"x")
        archive.writestr("meta.json", b" " * (17 << 20))
    with pytest.raises(UserError, match=r"bomb\.zip: meta\.json has more than 167"):
        import_mfa(bomb, tmp_path / "package")
    (tmp_path / "none.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"none\.zip: no whole zip file"):
        import_mfa(tmp_path / "none.zip", tmp_path / "package")


# -- of others ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "phones", "pdfs", "adapts"),
    [
        ("mono_model", 171, 132, False),
        ("dine_bizaad_navajo", 327, 296, True),
        ("acoustic_g2p_output_model", 73, 80, True),
    ],
)
def test_models_of_mfa_itself(tmp_path, name, phones, pdfs, adapts):
    source = shared_folder("models/mfa") / f"{name}.zip"
    system = imported(source, tmp_path).system
    assert system.model.facts()["num_phones"] == phones
    assert system.model.facts()["num_pdfs"] == pdfs
    assert system.is_speaker_adapted == adapts


def test_archive_of_a_g2p_model_is_no_acoustic_model(tmp_path):
    source = shared_folder("models/mfa") / "swahili_g2p.zip"
    with pytest.raises(UserError, match=r"it is a G2P model - latflow g2p apply and"):
        import_mfa(source, tmp_path / "package")
    with pytest.raises(
        UserError, match=r"it is an acoustic model - latflow import-mfa"
    ):
        TransducerG2p.load(source.with_name("mono_model.zip"))
