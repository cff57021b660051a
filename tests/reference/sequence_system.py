"""A small language with all that sequence training needs, and scores for its speech."""

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from latflow.align.aligner import Aligner
from latflow.align.graphs import TrainingGraphs, compile_transcripts
from latflow.align.options import AlignOptions
from latflow.criteria import mmi
from latflow.criteria.options import MmiOptions
from latflow.features.frames import FrameWriter
from latflow.graphs.denominator import make_denominator
from latflow.graphs.hclg import load_model
from latflow.graphs.options import DenominatorOptions, GraphOptions
from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import KaldiWriter, write_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.nnet.description import NetworkDescription
from latflow.nnet.model_dir import save_model
from latflow.nnet.network import Network, Output
from latflow.options import read_options
from latflow.sequence.criterion import SequenceCriterion
from latflow.sequence.generation import SequenceFiles, load_generator
from latflow.sequence.options import SequenceOptions
from latflow.training.batch import Batch

LEXICON = "A AA B\nB K AA\nC B K\n<UNK> SPN\n"
SCALE = 0.2


class Mmi(mmi.Mmi):
    """MMI without frame rejection, for tests to listen in."""

    def __init__(self, model, acoustic_scale=SCALE):
        options = MmiOptions(acoustic_scale=acoustic_scale, absent_numerator="keep")
        super().__init__(options, model)


@dataclass
class System:
    """Files of the language, and scores of each utterance."""

    root: Path
    files: SequenceFiles
    model: TransitionModel
    lang: Lang
    texts: dict
    scores: dict
    repository: Path

    def options(self, **changes):
        """Options of sequence training; `changes` by section."""
        lattices = {"lattice_beam": 6.0, "acoustic_scale": SCALE, "oracle_every": 1}
        given = {
            **changes,
            "lattices": {**lattices, **changes.get("lattices", {})},
            "alignments": {"acoustic_scale": SCALE, **changes.get("alignments", {})},
        }
        return read_options(SequenceOptions, given)

    def criterion(self, *, criterion=None, ce_weight=0.0, l2=0.0, threads=1, **changes):
        """A criterion without priors, unless `prior_scale` says otherwise."""
        options = self.options(**{"prior_scale": 0.0, **changes})
        return SequenceCriterion(
            load_generator(
                self.files, criterion or Mmi(self.model), options, GraphOptions()
            ),
            np.zeros(self.model.num_pdfs, np.float32),
            options,
            ce_weight=ce_weight,
            l2=l2,
            threads=threads,
        )

    def batch(self, utterances, *, pad=0):
        """A batch of whole utterances, and the leaf of its scores [B, T, P]."""
        lengths = [len(self.scores[u]) for u in utterances]
        shape = (len(utterances), max(lengths) + pad, self.model.num_pdfs)
        logits = torch.zeros(shape)
        for b, u in enumerate(utterances):
            logits[b, : lengths[b]] = torch.from_numpy(self.scores[u])
        sizes = torch.tensor(lengths)
        batch = Batch(
            utterances=tuple(utterances),
            features=torch.zeros(*shape[:2], 1),
            lengths=sizes,
            targets={},
            first_frame=torch.zeros(len(lengths), dtype=torch.int64),
            indices=torch.arange(len(lengths)),
            counted=sizes,
        )
        return batch, logits.requires_grad_()

    def outputs(self, logits, batch):
        """What a network would give."""
        return {"output": Output(logits, batch.lengths)}


def make_system(root, repository, *, count=6, seed=1):
    """Write everything below a folder."""
    rng = np.random.default_rng(seed)
    lang_options = LangOptions(num_nonsilence_states=2, num_silence_states=1)
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=lang_options)
    lang = Lang.load(root / "lang")
    model = _write_model(root / "model", lang)
    texts = {f"u{n:02}": _text(rng) for n in range(count)}
    _write_cuts(root / "cuts.jsonl.gz", texts)
    _write_frames(root / "texts", texts, {u: np.zeros((1, 1)) for u in texts})
    graph = root / "den" / "HCLG.fst"
    graph.parent.mkdir()
    make_denominator(
        root / "lang",
        root / "cuts.jsonl.gz",
        root / "model",
        graph,
        options=DenominatorOptions(),
    )
    compile_transcripts(
        root / "texts",
        root / "lang",
        root / "model",
        root / "graphs",
        threads=1,
    )
    graphs = TrainingGraphs.load(root / "graphs")
    aligner = Aligner(model, AlignOptions(acoustic_scale=SCALE), GraphOptions())
    scores, alignments = {}, {}
    for u, text in texts.items():
        graph_of = graphs.get(lang.words_to_ids(text))
        scores[u] = _scores(rng, graph_of, model)
        alignments[u] = aligner.align(graph_of, scores[u]).transition_ids
    write_int_vectors(root / "ali.ark", alignments.items())
    _write_frames(root / "frames", texts, scores)
    _write_seed(root, model.num_pdfs)
    files = SequenceFiles(
        [root / "texts"],
        root / "lang",
        root / "model",
        graph,
        [root / "ali.ark"],
        root / "graphs",
    )
    return System(root, files, model, lang, texts, scores, repository)


def _text(rng):
    return " ".join(rng.choice(["A", "B", "C", "A", "X"], rng.integers(1, 5)))


def _write_model(folder, lang):
    folder.mkdir()
    topology = lang.topology
    tree = ContextDependency.monophone(lang.phone_sets, topology.pdf_class_counts())
    tree.save(folder / "tree")
    with KaldiWriter.open(folder / "final.mdl") as writer:
        TransitionModel.from_tree(tree, topology).write(writer)
    return load_model(folder)[1]


def _write_cuts(path, texts):
    with gzip.open(path, "wt") as stream:
        for utterance, text in texts.items():
            cut = {"id": utterance, "supervisions": [{"text": text}]}
            stream.write(json.dumps(cut) + "\n")


def _write_frames(folder, texts, frames):
    with FrameWriter(folder, dim=next(iter(frames.values())).shape[1]) as writer:
        for utterance, text in texts.items():
            writer.append(utterance, "s", text, frames[utterance])


def _write_seed(root, num_pdfs):
    """A linear network that hands its features on as scores, nearly."""
    description = NetworkDescription.from_config(
        {"layers": {"out": {"class": "output"}}}
    )
    network = Network(description, num_pdfs, {"pdf": num_pdfs}, seed=1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.1)
            if parameter.ndim == 2:
                parameter.add_(torch.eye(num_pdfs))
    meta = {"normalization": {"type": "none"}}
    save_model(root / "seed", network, description, np.ones(num_pdfs), meta)
    for name in ("tree", "final.mdl"):
        shutil.copyfile(root / "model" / name, root / "seed" / name)


def _scores(rng, graph, model):
    """Noise, with a path of the training graph standing out of it a little."""
    state, pdfs = graph.start, []
    while not np.isfinite(graph.final[state]) or len(pdfs) < 5:
        arcs = range(int(graph.arc_begin[state]), int(graph.arc_begin[state + 1]))
        if not arcs:
            break
        arc = int(rng.choice(list(arcs)))
        if graph.ilabel[arc]:
            pdfs.append(int(model.pdf[graph.ilabel[arc]]))
        state = int(graph.next_state[arc])
    scores = rng.normal(0, 2, (len(pdfs), model.num_pdfs))
    scores[np.arange(len(pdfs)), pdfs] += 3
    return scores.astype(np.float32)
