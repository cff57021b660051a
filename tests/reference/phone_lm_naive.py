"""The phone language model the slow way: whole data looked at for every decision."""

from collections import Counter
from math import log

TIE = 1e-15  # cost per count of joining with a history without counts


def ngrams(sequence, order):
    """(history, phone) of a sequence, one 0 before it and one behind it."""
    padded = [0, *sequence, 0]
    for n in range(1, len(padded)):
        yield tuple(padded[max(0, n - order + 1) : n]), padded[n]


def log_like(states):
    """Log-likelihood of the counts of all states by relative frequency."""
    return sum(
        count * log(count / sum(counts.values()))
        for counts in states.values()
        for count in counts.values()
    )


def pruned_states(sequences, order, no_prune, num_extra):
    """{history: counts of the next phone}, joined one after another, cheapest first.

    In each of four stages those are joined that could be at its start, and the shorter
    histories they were joined with. The cost of one is computed anew when it is chosen,
    and another one may be chosen then.
    """
    states, born = {}, []

    def create(history):
        if history not in states:
            states[history] = Counter()
            born.append(history)
            if len(history) >= no_prune:
                create(history[1:])

    for sequence in sequences:
        for history, phone in ngrams(sequence, order):
            create(history)
            states[history][phone] += 1
    target = sum(len(history) == no_prune - 1 for history in states) + num_extra

    def has_longer(history):
        """Whether a history that ends so, and longer ones of it, have counts."""
        return any(
            counts and other[-len(history) :] == history
            for other, counts in states.items()
            if len(other) >= max(len(history), no_prune) or other == history
        )

    def may_join(history):
        if len(history) < no_prune or not states[history]:
            return False
        if any(has_longer((first, *history)) for first in range(max_phone + 1)):
            return False
        following = ((*history, phone) for phone in states[history])
        return not any(other in states and has_longer(other) for other in following)

    def cost(history):
        if not states[history[1:]]:
            return TIE * sum(states[history].values())
        joined = dict(states)
        joined[history[1:]] = states[history[1:]] + states[history]
        joined[history] = Counter()
        return round(log_like(states) - log_like(joined), 9)

    max_phone = max(max(sequence) for sequence in sequences if len(sequence))
    first = sum(bool(counts) for counts in states.values())
    for stage in (1, 2, 3, 4):
        wanted = first - int((first - target) * stage / 4)
        choices = {history: cost(history) for history in states if may_join(history)}
        while choices and sum(bool(c) for c in states.values()) > wanted:
            chosen = min(choices, key=lambda h: (choices[h], -born.index(h)))
            present = cost(chosen)
            if abs(present - choices[chosen]) > 0.001 * (present + choices[chosen]):
                choices[chosen] = present
                continue
            states[chosen[1:]] = states[chosen[1:]] + states[chosen]
            states[chosen] = Counter()
            del choices[chosen]
            if may_join(chosen[1:]):
                choices[chosen[1:]] = cost(chosen[1:])
    return {history: counts for history, counts in states.items() if counts}
