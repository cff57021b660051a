"""Back-off models as a dictionary, straight from the definition; random small ones."""

import math
import tempfile
from pathlib import Path

import numpy as np
from reference.lattice_paths import enumerate_paths

from latflow.fst.graph import Graph
from latflow.lang.arpa import read_arpa
from latflow.lang.grammar import write_grammar

WORDS = ("a", "b", "c", "d")
WORD_IDS = {"<eps>": 0, "a": 1, "b": 2, "c": 3, "d": 4, "#0": 5, "<s>": 6, "</s>": 7}


class NaiveLm:
    """N-grams with their log10 probabilities and back-off weights.

    Args:
        ngrams: words -> (log10 probability, log10 back-off weight or None).
        order: length of the longest n-grams.
    """

    def __init__(self, ngrams, order):
        self.ngrams, self.order = ngrams, order

    def log10(self, word, history):
        """Log10 p(word | history), by the definition of back-off."""
        history = history[max(0, len(history) - self.order + 1) :]
        if (*history, word) in self.ngrams:
            return self.ngrams[*history, word][0]
        assert history, f"no unigram {word}"
        weight = self.ngrams.get(history, (0.0, None))[1] or 0.0
        return weight + self.log10(word, history[1:])

    def costs(self, words):
        """-ln p of each word of a sentence, and of its end.

        A word that is not listed counts as <unk>, and the history starts anew behind
        it, as in Kaldi's ConstArpaLmDeterministicFst.
        """
        history, costs = ("<s>",), []
        for word in (*words, "</s>"):
            known = word if (word,) in self.ngrams else "<unk>"
            costs.append(-math.log(10.0) * self.log10(known, history))
            history = (*history, word) if known == word else ()
        return costs

    def write(self, path: Path):
        """Write an ARPA file."""
        lines = ["\\data\\"]
        for n in range(1, self.order + 1):
            count = sum(len(words) == n for words in self.ngrams)
            lines.append(f"ngram {n}={count}")
        for n in range(1, self.order + 1):
            lines += ["", f"\\{n}-grams:"]
            for words, (log_prob, weight) in self.ngrams.items():
                if len(words) == n:
                    end = "" if weight is None else f"\t{weight:.6f}"
                    lines.append(f"{log_prob:.6f}\t{' '.join(words)}{end}")
        path.write_text("\n".join([*lines, "", "\\end\\", ""]))


def random_lm(generator, order, *, words=WORDS, share=0.4, has_unknown=False):
    """A model with n-grams drawn at random; costs are not probabilities.

    The prefix of an n-gram is listed too, its other parts need not be. Some histories
    have no back-off weight, some n-grams have one though nothing is longer.

    Args:
        generator: where randomness comes from.
        order: length of the longest n-grams.
        words: the vocabulary, without <s> and </s>.
        share: of the possible n-grams that are listed.
        has_unknown: whether <unk> is a word.
    """
    listed = [*words, *(["<unk>"] if has_unknown else [])]
    level = [("<s>",), ("</s>",), *((word,) for word in listed)]
    ngrams = {}
    for n in range(1, order + 1):
        for ngram in level:
            log_prob = -99.0 if ngram == ("<s>",) else -round(generator.random() * 3, 6)
            weight = round(generator.normal() * 0.5, 6)
            may_go_on = n < order and ngram[-1] != "</s>" and generator.random() < 0.8
            ngrams[ngram] = (log_prob, weight if may_go_on else None)
        level = [
            (*ngram, word)
            for ngram in level
            for word in (*listed, "</s>")
            if ngram[-1] != "</s>" and generator.random() < share
        ]
    longest = max(map(len, ngrams))  # the levels drawn last may be empty
    for ngram in ngrams:
        if len(ngram) == longest:
            ngrams[ngram] = (ngrams[ngram][0], None)
    return NaiveLm(ngrams, longest)


def in_files(naive):
    """The model read by `read_arpa`, and as the grammar that is made of its file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        naive.write(folder / "lm.arpa")
        lines = (f"{word} {number}\n" for word, number in WORD_IDS.items())
        (folder / "words.txt").write_text("".join(lines))
        write_grammar(folder / "lm.arpa", folder, WORD_IDS, folder / "G.fst")
        grammar = Graph.from_fst(Graph.load(folder / "G.fst").to_fst())
        return read_arpa(folder / "lm.arpa"), grammar


def rescored_paths(lattice, old, new, lm_scale=1.0):
    """(transition-ids, words, acoustic cost, new graph cost) of all paths, sorted."""
    names = {number: word for word, number in WORD_IDS.items()}
    rows = []
    for path in enumerate_paths(lattice):
        words = [names[word] for word in path.words]
        change = sum(new.costs(words)) - sum(old.costs(words))
        graph = path.graph_cost + lm_scale * change
        rows.append((path.transition_ids, path.words, path.acoustic_cost, graph))
    return sorted(rows)


def listed_paths(lattice):
    """The same of a lattice as it is."""
    return sorted(
        (path.transition_ids, path.words, path.acoustic_cost, path.graph_cost)
        for path in enumerate_paths(lattice)
    )


def assert_same_paths(found, expected, tolerance=2e-4):
    """Compare two lists of paths: all equal but graph costs, which are close."""
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    costs = np.array([[row[3] for row in rows] for rows in (found, expected)])
    np.testing.assert_allclose(costs[0], costs[1], rtol=0, atol=tolerance)
