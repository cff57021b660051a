"""`G.carpa` as its description says, written n-gram by n-gram from a model."""

import math
import struct


def entries_of(model, ids):
    """Return n-gram -> (ln of its probability, of its weight; n-grams behind it).

    N-grams are tuples of word ids.
    """
    names = [[(number,) for number in ids]]
    for level in model.levels[1:]:
        pairs = zip(level.prefix, level.word, strict=True)
        names.append([(*names[-1][prefix], ids[word]) for prefix, word in pairs])
    found = {}
    for level, rows in zip(model.levels, names, strict=True):
        for number, ngram in enumerate(rows):
            weight = 0.0 if level.log_backoff is None else level.log_backoff[number]
            weight = 0.0 if math.isnan(weight) else weight
            ln = math.log(10.0)
            found[ngram] = (level.log_prob[number] * ln, weight * ln, [])
            if len(ngram) > 1:
                found[ngram[:-1]][2].append(ngram)
    return found


def write_const_arpa(path, model, word_ids, *, farthest=2**30 - 1, old=False):
    """Write a model.

    Args:
        path: of the file.
        model: an `NgramModel`.
        word_ids: word -> id.
        farthest: distance that a reference may have; smaller ones are for tests.
        old: write the older form.
    """
    ids = [word_ids[word] for word in model.words]
    ngrams = entries_of(model, ids)
    is_history = {
        ngram: len(ngram) == 1 or bool(rest) or weight != 0.0
        for ngram, (_, weight, rest) in ngrams.items()
    }
    places, size = {}, 0
    for ngram in sorted(n for n, is_one in is_history.items() if is_one):
        places[ngram] = size
        size += 3 + 2 * len(ngrams[ngram][2])
    data, far = b"", []
    for ngram in sorted(places):
        log_prob, weight, rest = ngrams[ngram]
        data += struct.pack("<ffi", log_prob, weight, len(rest))
        for longer in sorted(rest):
            distance = places.get(longer, 0) - places[ngram]
            if longer not in places:
                (bits,) = struct.unpack("<i", struct.pack("<f", ngrams[longer][0]))
                reference = bits & ~1
            elif distance <= farthest:
                reference = 2 * distance + 1
            else:
                reference = -(2 * len(far) + 1)
                far.append(places[longer] + 1)
            data += struct.pack("<ii", longer[-1], reference)
    words = [0] * (max(ids) + 1)
    for number in ids:
        words[number] = places[(number,)] + 1
    unknown = word_ids["<unk>"] if "<unk>" in model.words else -1
    head = (word_ids["<s>"], word_ids["</s>"], unknown, len(model.levels))
    path.write_bytes(b"\0B" + (_old if old else _new)(head, data, words, far))


def _int32(number):
    return b"\4" + struct.pack("<i", number)


def _int64(number):
    return b"\10" + struct.pack("<q", number)


def _new(head, data, words, far):
    parts = [
        (b"LmInfo", b"".join(map(_int32, head))),
        (b"LmStates", _int64(len(data) // 4) + data),
        *(
            (name, _int32(len(table)) + struct.pack(f"<{len(table)}q", *table))
            for name, table in ((b"LmUnigram", words), (b"LmOverflow", far))
        ),
    ]
    inside = b"".join(b"<%b> %b</%b> " % (name, x, name) for name, x in parts)
    return b"<ConstArpaLm> " + inside + b"</ConstArpaLm> "


def _old(head, data, words, far):
    numbers = struct.unpack(f"<{len(data) // 4}i", data)
    text = b"".join(map(_int32, (*head, len(numbers), *numbers)))
    for table in (words, far):
        text += _int32(len(table)) + b"".join(map(_int64, table))
    return text
