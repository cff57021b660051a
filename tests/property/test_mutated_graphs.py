"""Mutated lexica, language models and graphs of words and of states."""

import gzip
import shutil
from pathlib import Path

import numpy as np
from fixtures.made_up_alignments import make_system
from fixtures.mutations import ARPA, LEXICON, check, of_each, use_all, write_cuts
from reference.decode_paths import endless_graph, random_graph

from latflow.decode.decoder import LatticeDecoder
from latflow.decode.rescore import RescoreJob, rescore_lattices
from latflow.decode.rescore_n_best import mix_language_models, rescore_n_best
from latflow.decode.search_graph import GraphFile, mapped_search_graph
from latflow.fst.graph import Graph
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.hmm.tree import ContextDependency
from latflow.lang.arpa import perplexity, read_arpa
from latflow.lang.completion import apply_model, complete_lexicon
from latflow.lang.completion import train_model as train_lexicon_model
from latflow.lang.directory import Lang, read_symbols
from latflow.lang.g2p import G2p, train_g2p
from latflow.lang.lexicon import read_lexicon
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram_counts import (
    text_sentences,
    transcript_sentences,
)
from latflow.lang.options import LangOptions, LstmLmOptions
from latflow.lang.prepare import import_lang, make_grammar, make_lang
from latflow.lattice.io.archives import write_lattices
from latflow.lattice.lattice import Lattice
from latflow.nnet.language_model import NeuralLm, WordLstm

TID_TO_PDF = np.array([0, 0, 1, 1, 2], np.int32)
LOG_LIKES = np.random.default_rng(7).normal(size=(6, 3)).astype(np.float32)


def use_graph(path):
    decoder = LatticeDecoder(Graph.load(path), TID_TO_PDF, beam=8.0)
    decoder.decode(LOG_LIKES, acoustic_scale=1.0, utterance="u")


def write_graph(path, rng, form):
    random_graph(rng, 6, has_cycles=False).save(path, **form)


def use_arpa(path):
    perplexity(read_arpa(path), [["one", "two"], ["one"]])


def use_trie(path):
    trie = LmTrie.load(path, {"one": 1, "two": 2})
    trie.sentence_costs(np.array([1, 2, 1]))


def write_g2p(path, rng):
    entries = [
        ("one", ("W", "AH", "N")),
        ("two", ("T", "UW")),
        ("ton", ("T", "AH", "N")),
    ]
    train_g2p(entries, order=2).trie.save(path)


def write_lang(folder, rng):
    lexicon = folder / "given.txt"
    lexicon.write_text(LEXICON)
    make_lang(lexicon, folder / "lang", options=LangOptions())
    (folder / "lm.arpa").write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))


def use_lang(folder):
    Lang.load(folder / "lang")
    make_grammar(folder / "lm.arpa", folder / "lang", folder / "G.fst")


def write_neural_lm(folder, rng):
    options = LstmLmOptions(size=4)
    words = ["</s>", "ONE", "TWO"]
    NeuralLm(WordLstm(3, options).eval(), words, options, {}).save(folder / "lm")


def read_arpa_text(path):
    """Return the model of `ARPA`, read beside a path."""
    given = path.with_suffix(".arpa")
    given.write_text(ARPA)
    model = read_arpa(given)
    given.unlink()
    return model


def write_mixed(folder, rng):
    """Write all that lattices are rescored with by a mixture."""
    folder.joinpath("lang").mkdir()
    words = ["<eps>", "ONE", "TWO", "#0", "<s>", "</s>"]
    lines = (f"{word} {i}\n" for i, word in enumerate(words))
    (folder / "lang/words.txt").write_text("".join(lines))
    own, zeros = np.array([1, 2], np.int32), np.zeros(2, np.int32)
    costs, final = np.ones(2, np.float32), np.ones(1, np.float32)
    begin = np.array([0, 2])
    Graph.from_arrays(0, begin, own, own, costs, zeros, final).save(folder / "G.fst")
    write_neural_lm(folder, rng)
    (folder / "mixture.json").write_text('{"weight": 0.3}')
    (folder / "scales.json").write_text('{"lmwt": 9, "wip": 0.5}')
    arcs = np.array([(0, 1, 9, 0), (1, 2, 7, 1), (1, 2, 7, 2)], np.int32)
    costs = np.concatenate([[[0, 0]], rng.normal(size=(2, 2))]).astype(np.float32)
    finals = np.array([[np.inf, np.inf]] * 2 + [[1.0, 2.0]], np.float32)
    lattice = Lattice.from_arcs(arcs, costs, finals)
    write_lattices(folder / "lattices.ark", [("u0", lattice)])


def use_mixed(folder):
    job = RescoreJob(
        lattices=folder / "lattices.ark",
        grammar=folder / "G.fst",
        lang_dir=folder / "lang",
        out_dir=folder / "out",
        beam=30.0,
    )
    how = {"scales": folder / "scales.json", "n_best": 5, "device": "cpu"}
    rescore_n_best(job, folder / "lm", folder / "mixture.json", **how)


def write_vector_graph(path, rng):
    with path.open("wb") as stream:
        random_graph(rng, 6, has_cycles=False).write_vector(stream)


def write_packed_graph(folder, rng):
    """Write a graph, which stays as it is, and its packed form."""
    given = folder.parent / "HCLG.fst"
    endless_graph(rng, 6).save(given)
    mapped_search_graph(Graph.load(given), TID_TO_PDF, given)
    shutil.move(f"{given}.packed", folder / "packed")


def use_packed_graph(folder):
    given = folder.parent / "HCLG.fst"
    shutil.copy(folder / "packed", f"{given}.packed")
    file = GraphFile(Graph.load(given), given)
    decoder = LatticeDecoder(file, TID_TO_PDF, beam=8.0)
    decoder.decode(LOG_LIKES, acoustic_scale=1.0, utterance="u")


def write_graph_parts(folder, rng):
    """Write what a decoding graph is made of."""
    _, lang, _ = make_system(folder)
    counts = lang.topology.pdf_class_counts()
    ContextDependency.monophone([[p] for p in sorted(counts)], counts).save(
        folder / "tree"
    )
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    make_grammar(arpa, folder / "lang", folder / "lang/G.fst")
    for name in ("lexicon.txt", "lm.arpa"):
        (folder / name).unlink()


def use_graph_parts(folder):
    lang = folder / "out/lang"
    import_lang(folder / "lang", lang)
    graph = folder / "out/HCLG.fst"
    make_graph(lang, lang / "G.fst", folder, graph, options=GraphOptions())


def write_rescored(folder, rng):
    """Write lattices, the language model that goes, and two that come."""
    write_mixed(folder, rng)
    shutil.rmtree(folder / "lm")
    for name in ("mixture.json", "scales.json"):
        (folder / name).unlink()
    arpa = folder / "lm.arpa"
    arpa.write_text(ARPA.replace("one", "ONE").replace("two", "TWO"))
    LmTrie.from_model(read_arpa(arpa), {"ONE": 1, "TWO": 2}).save(folder / "lm.trie")


def use_rescored(folder):
    for name in ("lm.arpa", "lm.trie"):
        rescore_lattices(
            RescoreJob(
                lattices=folder / "lattices.ark",
                grammar=folder / "G.fst",
                lang_dir=folder / "lang",
                out_dir=folder / "out",
                beam=8.0,
                threads=1,
            ),
            arpa=folder / name,
            acoustic_scale=0.1,
        )


def write_completed(folder, rng):
    """Write a lexicon, a model of it, and words that it lacks."""
    (folder / "lexicon.txt").write_text("ONE W AH N\nTWO T UW\nTON T AH N\n")
    options = LangOptions.model_validate({"g2p": {"order": 2}})
    train_lexicon_model(folder / "lexicon.txt", folder / "g2p", options=options)
    (folder / "words.txt").write_text("TOW\nWON\n")
    (folder / "lm.txt").write_text("ONE WON TWO\n")
    (folder / "lm.arpa").write_text(ARPA.replace("one", "ONE").replace("two", "TOW"))
    write_cuts(folder / "cuts.jsonl.gz", rng)


def use_completed(folder):
    list(apply_model(folder / "g2p", folder / "words.txt", number=2))
    complete_lexicon(
        folder / "lexicon.txt", folder / "completed",
        options=LangOptions(), cuts=folder / "cuts.jsonl.gz", text=folder / "lm.txt",
        arpa=folder / "lm.arpa", model=folder / "g2p",
    )  # fmt: skip
    make_lang(folder / "completed/lexicon.txt", folder / "lang", options=LangOptions())


def write_mixture(folder, rng):
    write_neural_lm(folder, rng)
    text = ARPA.replace("one", "ONE").replace("two", "TWO")
    (folder / "lm.arpa").write_text(text)
    write_cuts(folder / "cuts.jsonl.gz", rng)


def use_mixture(folder):
    mix_language_models(
        folder / "lm", folder / "lm.arpa", folder / "cuts.jsonl.gz",
        folder / "mixture.json", device="cpu",
    )  # fmt: skip


#: Name of file or folder, how it is written, how it is used.
KINDS = {
    "graph": ("HCLG.fst", lambda p, rng: write_graph(p, rng, {}), use_graph),
    "ARPA": ("lm.arpa", lambda p, _: p.write_text(ARPA), use_arpa),
    "symbols": (
        "words.txt",
        lambda p, _: p.write_text("<eps> 0\nONE 1\nTWO 2\n"),
        read_symbols,
    ),
    "lexicon": ("lexicon.txt", lambda p, _: p.write_text(LEXICON), read_lexicon),
    "lexicon with probabilities": (
        "lexiconp.txt",
        lambda p, _: p.write_text("ONE 1.0 W AH N\nTWO 0.8 T UW\nTWO 0.2 T AX\n"),
        read_lexicon,
    ),
    "compressed ARPA": (
        "lm.arpa.gz",
        lambda p, _: p.write_bytes(gzip.compress(ARPA.encode(), mtime=0)),
        use_arpa,
    ),
    "mapped n-grams": (
        "lm.trie",
        lambda p, _: LmTrie.from_model(read_arpa_text(p), {"one": 1, "two": 2}).save(p),
        use_trie,
    ),
    "graphones": ("g2p", write_g2p, lambda p: G2p.load(p).pronounce("tow", 2)),
    "language directory": ("", write_lang, use_lang),
    "neural language model": (
        "",
        write_neural_lm,
        lambda folder: NeuralLm.load(folder / "lm").log_probs([["ONE", "TWO"]]),
    ),
    "mixture of language models": ("", write_mixed, use_mixed),
    "sentences": (
        "text",
        lambda p, _: p.write_text("ONE TWO\nTWO\n"),
        use_all(text_sentences),
    ),
    "transcripts to learn from": (
        "cuts.jsonl.gz",
        write_cuts,
        lambda p: list(transcript_sentences([p])),
    ),
    "aligned graph": (
        "HCLG.fst",
        lambda p, rng: write_graph(p, rng, {"is_aligned": True}),
        use_graph,
    ),
    "graph of type vector": ("HCLG.fst", write_vector_graph, use_graph),
    "packed graph": ("", write_packed_graph, use_packed_graph),
    "parts of a graph": ("", write_graph_parts, use_graph_parts),
    "second language model": ("", write_rescored, use_rescored),
    "lexicon to complete": ("", write_completed, use_completed),
    "language models to mix": ("", write_mixture, use_mixture),
}


@of_each(KINDS)
def test_a_mutated_file_gives_a_result_or_one_clear_line(tmp_path: Path, kind, cases):
    check(KINDS, kind, tmp_path, cases)
