"""All word sequences that a decoder with attention could tell, by brute force."""

from dataclasses import dataclass

import torch

from latflow.nnet.layers.decoder import END


@dataclass(frozen=True)
class Found:
    """A sequence of words: entries of the tree, and the parts of its score."""

    words: tuple
    acoustic: float
    lm_cost: float
    score: float


def told(decoder, values, units):
    """Log-probabilities of units and end, and the weights, a row a unit and the end."""
    memory = decoder.memory(values[None], torch.tensor([len(values)]))
    state, before = decoder.start(memory), END
    log_prob, weights = 0.0, []
    for unit in [*units, END]:
        logits, state = decoder.step(torch.tensor([before]), state, memory)
        log_prob += float(torch.log_softmax(logits[0].double(), 0)[unit])
        weights.append(state.attention[0])
        before = unit
    return log_prob, torch.stack(weights)


def sequences(entries, room):
    """Every sequence of entries with at most `room` phones."""
    yield ()
    for number, entry in enumerate(entries):
        if entry.num_phones <= room:
            for rest in sequences(entries, room - entry.num_phones):
                yield (number, *rest)


@torch.no_grad()
def every_sequence(decoder, values, tree, options):
    """All sequences, the best first; of each sequence of words the best spelling."""
    best = {}
    for numbers in sequences(tree.entries, len(values)):
        chosen = [tree.entries[number] for number in numbers]
        units = [unit for entry in chosen for unit in entry.units]
        log_prob, weights = told(decoder, values, units)
        covered = int((weights.sum(0) > options.coverage_threshold).sum())
        acoustic = log_prob + options.coverage * covered
        acoustic += options.length_bonus * len(units)
        words = tuple(entry.word for entry in chosen)
        cost = float(tree.lm.sentence_costs(list(words)).sum())
        score = acoustic - options.lm_scale * cost
        if words not in best or score > best[words].score:
            best[words] = Found(words, acoustic, cost, score)
    return sorted(best.values(), key=lambda one: -one.score)


@torch.no_grad()
def greedy(decoder, values, tree, lm_scale):
    """The words of the search that takes the best unit in each step."""
    spelled = {e.units: e for e in tree.entries}  # no word twice
    memory = decoder.memory(values[None], torch.tensor([len(values)]))
    state, before = decoder.start(memory), END
    words, inside, phones = [], (), 0
    while True:
        logits, state = decoder.step(torch.tensor([before]), state, memory)
        log_probs = torch.log_softmax(logits[0].double(), 0).tolist()
        costs = tree.lm.sentence_costs(words)
        choices = []
        if not inside:
            choices.append((log_probs[END] - lm_scale * costs[-1], END, None))
        for unit in range(1, len(log_probs)):
            longer = (*inside, unit)
            if any(s[: len(longer)] == longer and s != longer for s in spelled):
                choices.append((log_probs[unit], unit, longer))
            entry = spelled.get(longer)
            if entry is not None and phones + entry.num_phones <= len(values):
                cost = tree.lm.sentence_costs([*words, entry.word])[-2]
                choices.append((log_probs[unit] - lm_scale * cost, unit, entry))
        if not choices:
            return None
        _, before, then = max(choices, key=lambda one: one[0])
        if then is None:
            return tuple(words)
        if isinstance(then, tuple) and not hasattr(then, "word"):
            inside = then
        else:
            words, inside, phones = [*words, then.word], (), phones + then.num_phones
