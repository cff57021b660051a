"""A lang directory, untrained monophones and alignments of one's choice."""

import numpy as np
from lhotse import AudioSource, MonoCut, Recording, SupervisionSegment
from reference.serving_package import LEXICON

from latflow.hmm.transition_model import TransitionModel
from latflow.hmm.tree import ContextDependency
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang


def make_system(folder):
    """Write `lang/` and `final.mdl`; return the folder, the language and the model."""
    (folder / "lexicon.txt").write_text(LEXICON)
    make_lang(folder / "lexicon.txt", folder / "lang", options=LangOptions())
    lang = Lang.load(folder / "lang")
    counts = lang.topology.pdf_class_counts()
    tree = ContextDependency.monophone([[p] for p in sorted(counts)], counts)
    model = TransitionModel.from_tree(tree, lang.topology)
    model.save(folder / "final.mdl")
    return folder, lang, model


def states(lang, model, phones, frames):
    """Transition-ids of phones, so many frames each (in the plain order of arcs)."""
    ids = []
    for name, count in zip(phones, frames, strict=True):
        phone = lang.phone_ids[name]
        own = np.flatnonzero(model.phone[1:] == phone) + 1
        loops = own[model.is_self_loop[own]]
        path = []
        for state in range(3):
            here = own[model.hmm_state[own] == state]
            leaving = here[~model.is_self_loop[here]]
            path.append(int(leaving[-1]))
        stay = int(loops[model.hmm_state[loops] == 2][0])
        ids += [*path, *[stay] * (count - 3)]
    return np.array(ids, np.int32)


def cut(name, recording, speaker, text, start=0.0, duration=0.3):
    """Return an utterance of a recording."""
    said = SupervisionSegment(
        name, recording.id, 0.0, duration, 0, text, speaker=speaker
    )
    return MonoCut(name, start, duration, 0, [said], recording=recording)


def recording(name, path, seconds=1.0):
    """Return a recording of 8 kHz."""
    sources = [AudioSource("file", [0], str(path))]
    return Recording(name, sources, 8000, round(8000 * seconds), seconds)
