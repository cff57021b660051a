"""Interpolated modified Kneser-Ney smoothing, the slow and obvious way.

Dictionaries of tuples, and the defining recursion evaluated anew for every question.
The twin of `latflow.lang.ngram.estimate`; nothing is shared with it.
"""

from collections import Counter, defaultdict

START, END = "<s>", "</s>"
FALLBACK = (0.5, 1.0, 1.5)


def counts_of_counts_discounts(counts):
    """(D1, D2, D3+), or the fall-back where they are not defined."""
    n = Counter(c for c in counts if c > 0)
    if not (n[1] and n[2] and n[3]):
        return FALLBACK
    y = n[1] / (n[1] + 2 * n[2])
    found = tuple(k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
    return found if all(0 <= d <= k for k, d in enumerate(found, 1)) else FALLBACK


class KneserNey:
    """p(word | history) of a text."""

    def __init__(
        self, sentences, order, *, vocabulary=None, unknown=None, min_counts=(1,)
    ):
        least = [*min_counts, *[min_counts[-1]] * order][:order]
        if vocabulary is None:
            raw = Counter(word for line in sentences for word in line)
            vocabulary = [w for w, c in raw.items() if c >= least[0] and w != unknown]
        self.order = order
        self.words = {*vocabulary, END} | ({unknown} if unknown else set())
        known = set(vocabulary)
        text = [
            [START, *[w if w in known else unknown for w in line], END]
            for line in sentences
            if line
        ]
        self.raw = [Counter() for _ in range(order + 1)]
        for line in text:
            for n in range(1, order + 1):
                for i in range(len(line) - n + 1):
                    gram = tuple(line[i : i + n])
                    if None not in gram:
                        self.raw[n][gram] += 1
        self.count = [None, *[self._adjusted(n) for n in range(1, order + 1)]]
        self.kept = [
            None,
            *[
                {g for g, c in self.raw[n].items() if n == 1 or c >= least[n - 1]}
                for n in range(1, order + 1)
            ],
        ]
        self.discounts = [
            None,
            *[counts_of_counts_discounts(c.values()) for c in self.count[1:]],
        ]
        self.followers = [defaultdict(list) for _ in range(order + 1)]
        for n in range(1, order + 1):
            for gram in self.count[n]:
                self.followers[n][gram[:-1]].append(gram)

    def _adjusted(self, n):
        """Occurrences, or distinct left neighbours."""
        if n == self.order:
            adjusted = dict(self.raw[n])
        else:
            left = defaultdict(set)
            for gram in self.raw[n + 1]:
                left[gram[1:]].add(gram[0])
            adjusted = {
                g: c if g[0] == START else len(left[g]) for g, c in self.raw[n].items()
            }
        adjusted.pop((START,), None)
        return adjusted

    def _taken(self, gram):
        """What is taken off the count of an n-gram: all of it, if it is not kept."""
        n, count = len(gram), self.count[len(gram)][gram]
        if gram not in self.kept[n]:
            return count
        discount = (0.0, *self.discounts[n])[min(count, 3)]
        return min(count, discount)

    def backoff(self, history):
        """Weight of shorter histories; 1 for a history that the text lacks."""
        grams = self.followers[len(history) + 1][tuple(history)]
        total = sum(self.count[len(g)][g] for g in grams)
        return sum(self._taken(g) for g in grams) / total if total else 1.0

    def prob(self, word, history):
        """p(word | the last order - 1 words of the history)."""
        history = tuple(history)[-(self.order - 1) :] if self.order > 1 else ()
        grams = self.followers[len(history) + 1][history]
        total = sum(self.count[len(g)][g] for g in grams)
        gram = (*history, word)
        own = 0.0
        if total and gram in self.count[len(gram)]:
            own = (self.count[len(gram)][gram] - self._taken(gram)) / total
        if not history:
            return own + self.backoff(()) / len(self.words)
        return own + self.backoff(history) * self.prob(word, history[1:])


def table(model):
    """A `latflow.lang.arpa.NgramModel` as {n-gram: (log10 prob, log10 backoff)}."""
    result, grams = {}, [()]
    for level in model.levels:
        backoffs = [None] * len(level.word)
        if level.log_backoff is not None:
            backoffs = level.log_backoff.tolist()
        rows = zip(level.prefix, level.word, level.log_prob, backoffs, strict=True)
        longer = []
        for prefix, word, log_prob, backoff in rows:
            gram = (*grams[prefix], model.words[word])
            longer.append(gram)
            has_backoff = backoff is not None and backoff == backoff
            result[gram] = (log_prob, backoff if has_backoff else 0.0)
        grams = longer
    return result


def backoff_log_prob(grams, word, history):
    """log10 p(word | history) by the rule of ARPA models, from the table."""
    gram = (*history, word)
    if gram in grams:
        return grams[gram][0]
    if not history:
        return None
    shorter = backoff_log_prob(grams, word, history[1:])
    weight = grams.get(tuple(history), (0.0, 0.0))[1]
    return None if shorter is None else weight + shorter
