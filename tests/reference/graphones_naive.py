"""Alignment and search of graphones by writing down every way to cut a word.

The twin of `latflow.lang.graphones` and `latflow.lang.g2p_search`; nothing is shared
with them but the names of graphones, which the n-gram model has.
"""

import math
from collections import defaultdict

SPANS = ((1, 0), (1, 1), (1, 2), (2, 1))


def cuts(word, phones):
    """Yield all ways to cut a pronunciation, tuples of (letters, phones)."""
    if not word and not phones:
        yield ()
    for a, b in SPANS:
        if a <= len(word) and b <= len(phones):
            for rest in cuts(word[a:], phones[b:]):
                yield ((word[:a], tuple(phones[:b])), *rest)


def train(entries, iterations):
    """Probabilities after so many iterations, and the log-likelihood before each."""
    ways = [way for way in (list(cuts(*entry)) for entry in entries) if way]
    names = {graphone for entry in ways for way in entry for graphone in way}
    probs = dict.fromkeys(names, 1 / len(names))
    history = []
    for _ in range(iterations):
        counts, log_like = defaultdict(float), 0.0
        for entry in ways:
            weights = [math.prod(probs[g] for g in way) for way in entry]
            log_like += math.log(sum(weights))
            for way, weight in zip(entry, weights, strict=True):
                for graphone in way:
                    counts[graphone] += weight / sum(weights)
        history.append(log_like)
        total = sum(counts.values())
        probs = {name: counts[name] / total for name in names}
    return probs, history


def cut_score(probs, way):
    """Product of probabilities; of graphones with two letters or phones, cubed."""

    def power(letters, phones):
        return 3 if len(letters) > 1 or len(phones) > 1 else 1

    return math.prod(probs[graphone] ** power(*graphone) for graphone in way)


def best_cut_score(probs, word, phones):
    """Largest score of the ways to cut a pronunciation."""
    return max(cut_score(probs, way) for way in cuts(word, phones))


def pronounce(word, graphones, sentence_log10):
    """Probability of each pronunciation of a word.

    Args:
        word: its letters.
        graphones: {(letters, phones)}, those of the model.
        sentence_log10: log10 probability of a sequence of graphones, its end included.
    """
    joint = defaultdict(float)

    def extend(rest, path):
        if not rest:
            phones = tuple(p for _, spoken in path for p in spoken)
            if phones:
                joint[phones] += 10 ** sentence_log10(path)
        for letters, phones in graphones:
            if rest.startswith(letters):
                extend(rest[len(letters) :], (*path, (letters, phones)))

    extend(word, ())
    total = sum(joint.values())
    return {phones: value / total for phones, value in joint.items()}
