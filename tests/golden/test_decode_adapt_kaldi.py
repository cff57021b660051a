"""Decoding with the speaker-adapted system that Kaldi trained on digits."""

import json
import shutil

import numpy as np
import pytest
from fixtures.data_dir import write_mfcc_store

from latflow.decode.adapt import decode_adapted
from latflow.decode.options import AdaptOptions, SearchOptions
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm.model import save_transform
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import KaldiReader
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.edit_distance import count_errors
from latflow.lattice.io.archives import read_lattices
from latflow.parts import SetJob
from latflow.scoring.transcripts import read_text


@pytest.fixture(scope="module")
def decoded(golden, corpora, repository, tmp_path_factory):
    """The digits test set, decoded; the folder."""
    root = tmp_path_factory.mktemp("digits")
    system = root / "tri3b"
    shutil.copytree(golden / "gmm/tri3b", system)
    with KaldiReader.open(system / "final.mat") as reader:
        matrix = reader.float_matrix()
    save_transform(system, Chain([Splice(3, 3), Linear(matrix)]))
    write_mfcc_store(root / "frames", corpora / "digits/test")
    lang, graph = golden / "lang", root / "HCLG.fst"
    make_graph(lang, lang / "G.fst", system, graph, options=GraphOptions())
    decode_adapted(
        SetJob(
            frames_dir=root / "frames",
            model_dir=system,
            lang_dir=lang,
            out_dir=root / "out",
            threads=2,
            max_skipped_fraction=0.0,
        ),
        graph=graph,
        options=SearchOptions(),
        adapt=AdaptOptions(),
    )
    return root / "out"


def test_word_error_rate_is_kaldis(decoded, golden, corpora):
    """Kaldi's steps/decode_fmllr.sh: 1 of 297 words wrong at its best scales."""
    texts = read_text(corpora / "digits/test/text")
    words = {i: w for w, i in Lang.load(golden / "lang").word_ids.items()}
    settings = [Scales.from_lmwt(lmwt, 0.0) for lmwt in range(7, 18)]
    errors = np.zeros(len(settings), int)
    for utterance, lattice in read_lattices(decoded / "lattices.ark"):
        for k, path in enumerate(best_paths(lattice, settings)):
            found = [words[i] for i in path.words.tolist()]
            errors[k] += count_errors(texts[utterance], found).errors
    assert sum(map(len, texts.values())) == 297
    assert errors.max() <= 2


def test_all_speakers_are_adapted_and_gain(decoded):
    summary = json.loads((decoded / "decode.json").read_text())
    assert (summary["utterances"], summary["skipped"]) == (63, 0)
    first, second = summary["adaptation"]
    assert (first["num_speakers"], first["num_unadapted"]) == (6, 0)
    assert first["gain_per_frame"] > 5.0
    assert 0.0 < second["gain_per_frame"] < 0.1 * first["gain_per_frame"]
