"""Pronunciations by graphones: alignment, model and search against enumeration."""

import numpy as np
import pytest
from lhotse import CutSet, MonoCut, SupervisionSegment
from reference import graphones_naive

from latflow.cli.main import main
from latflow.errors import UserError
from latflow.lang import graphones
from latflow.lang.arpa import NgramModel
from latflow.lang.completion import MARK, complete_lexicon, train_model
from latflow.lang.g2p import G2p, train_g2p
from latflow.lang.graphones import (
    Graphone,
    Table,
    align_graphones,
    from_token,
    to_token,
)
from latflow.lang.lexicon import read_lexicon
from latflow.lang.lm_trie import LmTrie
from latflow.lang.ngram import estimate
from latflow.lang.options import G2pOptions, LangOptions
from latflow.lang.prepare import make_lang

LEXICON = """\
cat K AE T
tack T AE K
shack SH AE K
hat HH AE T
sat S AE T
cash K AE SH
tax T AE K S
axe AE K S
has HH AE Z
hash HH AE SH
sack S AE K
<noise> SPN
"""
ENTRIES = [
    (line.split()[0], tuple(line.split()[1:])) for line in LEXICON.splitlines()[:-1]
]


@pytest.fixture(scope="module")
def g2p():
    return train_g2p(ENTRIES, order=3)


def test_expectation_maximization_is_that_over_all_ways_to_cut():
    table = Table.of_entries(ENTRIES)
    probs, history = graphones_naive.train(ENTRIES, 4)
    found = [table.step()[0] for _ in range(4)]
    np.testing.assert_allclose(found, history, rtol=1e-10)
    assert (np.diff(found) >= 0).all()
    expected = sorted(p for p in probs.values() if p > 1e-12)
    np.testing.assert_allclose(sorted(table.prob[table.prob > 1e-12]), expected)
    for (word, phones), cut in zip(ENTRIES, table.best(ENTRIES), strict=True):
        score = graphones_naive.cut_score(probs, [(g.letters, g.phones) for g in cut])
        best = graphones_naive.best_cut_score(probs, word, phones)
        assert score == pytest.approx(best, rel=1e-9)
        assert "".join(g.letters for g in cut) == word
        assert tuple(p for g in cut for p in g.phones) == phones


def test_a_long_word_does_not_underflow():
    word, phones = "ab" * 400, ("A", "B") * 400
    (cut,) = align_graphones([(word, phones)])
    assert "".join(g.letters for g in cut) == word
    assert tuple(p for g in cut for p in g.phones) == phones


def test_many_iterations_lose_no_entry():
    table = Table.of_entries(ENTRIES)
    history = [table.step() for _ in range(40)]
    assert {used for _, used in history} == {len(ENTRIES)}
    assert (np.diff([log_like for log_like, _ in history]) > -1e-9).all()
    assert None not in list(table.best(ENTRIES))


def test_entries_without_a_way_to_be_cut_are_told():
    entries = [("w", ("D", "AH", "B")), ("", ("A",)), ("a", ("A",))]
    found = list(align_graphones(entries))
    assert found == [None, None, [Graphone("a", ("A",))]]
    with pytest.raises(UserError, match="no pronunciation to learn from"):
        train_g2p([("w", ("D", "AH", "B"))])


@pytest.mark.parametrize(
    "graphone", [("x", ("K", "S")), ("ph", ("F",)), ("e", ()), ("_", ("A",))]
)
def test_tokens_come_back(graphone):
    assert from_token(to_token(Graphone(*graphone))) == graphone


@pytest.mark.parametrize("token", ["<s>", "word", "}A", "a}", "ab}A"])
def test_other_words_are_no_graphones(token):
    assert from_token(token) is None


def test_search_adds_up_all_ways_to_cut():
    cut = list(align_graphones(ENTRIES))
    sentences = [[to_token(g) for g in each] for each in cut]
    model = estimate(sentences, 3)
    g2p = G2p(LmTrie.from_model(model, {}))
    known = {from_token(word) for word in model.words} - {None}
    for word in ("tash", "axs", "chat"):
        expected = graphones_naive.pronounce(
            word, known, lambda path: log10_prob(model, path)
        )
        found = g2p.pronounce(word, 10**6, max_hypotheses=10**6, beam=1e9)
        assert {phones: p for p, phones in found} == pytest.approx(expected, rel=1e-4)
        assert [p for p, _ in found] == sorted((p for p, _ in found), reverse=True)


def log10_prob(model: NgramModel, path):
    """Score of a sequence of graphones with its end."""
    tokens = ["<s>", *(to_token(Graphone(*g)) for g in path), "</s>"]
    ids = np.array([model.word_ids[token] for token in tokens])
    return np.nansum(model.log_probs(ids))


def test_the_beam_keeps_the_best(g2p):
    wide = g2p.pronounce("tash", 1, max_hypotheses=10**6, beam=1e9)
    narrow = g2p.pronounce("tash", 1, max_hypotheses=20, beam=6.0)
    assert narrow[0].phones == wide[0].phones
    assert len(g2p.pronounce("tash", 3)) == 3


def test_unknown_letters_give_no_pronunciation(g2p):
    assert g2p.pronounce("zoo", 2) == []
    assert g2p.pronounce("", 2) == []


def test_entries_with_marks_of_tokens_are_left_out():
    model = train_g2p([*ENTRIES, ("a|b", ("AE",)), ("ab", ("A}",))], order=2)
    assert "A}" not in model.phones
    assert not set(graphones.RESERVED) & set("".join(model.phones))


def test_train_and_apply_from_the_command_line(tmp_path, capsys):
    lexicon, model = tmp_path / "lexicon.txt", tmp_path / "model"
    lexicon.write_text(LEXICON)
    words = tmp_path / "words.txt"
    words.write_text("tash\nzoo\n")
    assert main(["g2p", "train", str(lexicon), str(model), "--order", "3"]) == 0
    assert main(["g2p", "apply", str(model), str(words), "--number", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tash", "tash"]
    best = G2p.load(model).pronounce("tash", 1)[0]
    assert tuple(lines[0].split()[2:]) == best.phones
    out = tmp_path / "out.txt"
    assert main(["g2p", "apply", str(model), str(words), "--out", str(out)]) == 0
    assert read_lexicon(out, has_probabilities=True).words == ["tash"]


def test_a_language_model_of_words_is_refused(tmp_path):
    LmTrie.from_model(estimate([["yes", "no"]], 2), {}).save(tmp_path / "lm")
    with pytest.raises(UserError, match="no model of graphones"):
        G2p.load(tmp_path / "lm")


@pytest.fixture
def corpus(tmp_path):
    """A lexicon, a training set with words that it lacks, and text of an LM."""
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    texts = ["cat tash", "tash zoo <UNK>"]
    cuts = [
        MonoCut(
            id=f"u{n}", start=0, duration=1, channel=0,
            supervisions=[
                SupervisionSegment(f"u{n}", "r", start=0, duration=1, text=text)
            ],
        )
        for n, text in enumerate(texts)
    ]  # fmt: skip
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    (tmp_path / "text.txt").write_text("chax cat\nchax tax\n")
    (tmp_path / "lm.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n"
        "-1 <s>\n-1 </s>\n-1 <unk>\n-1 shax\n\n\\end\\\n"
    )
    return tmp_path


def complete(folder, **settings):
    options = LangOptions(g2p=G2pOptions(order=3, **settings))
    complete_lexicon(
        folder / "lexicon.txt", folder / "g2p",
        options=options, cuts=folder / "cuts.jsonl.gz", text=folder / "text.txt",
        arpa=folder / "lm.arpa",
    )  # fmt: skip
    rows = (folder / "g2p/generated.tsv").read_text().splitlines()[1:]
    return options, [row.split("\t") for row in rows]


def test_words_that_the_lexicon_lacks_get_marked_pronunciations(corpus):
    options, rows = complete(corpus, num_pronunciations=2, min_probability=0.0)
    counts = {row[0]: tuple(row[3:]) for row in rows}
    assert counts == {
        "chax": ("0", "2"), "shax": ("0", "1"), "tash": ("2", "0"), "zoo": ("1", "0")
    }  # fmt: skip
    assert [row[1:3] for row in rows if row[0] == "zoo"] == [["", ""]]
    assert len([row for row in rows if row[0] == "tash"]) == 2
    lines = (corpus / "g2p/lexicon.txt").read_text().splitlines()
    mark = lines.index(MARK)
    assert mark == len(LEXICON.splitlines())
    assert lines[mark + 1].startswith("chax 0.")
    make_lang(
        corpus / "g2p/lexicon.txt", corpus / "lang", options=options,
        generated=corpus / "g2p/generated.tsv",
    )  # fmt: skip
    assert "tash" in (corpus / "lang/words.txt").read_text()
    copied = (corpus / "lang/generated.tsv").read_text()
    assert copied == (corpus / "g2p/generated.tsv").read_text()


def test_rare_and_unlikely_ones_are_left_out(corpus):
    _, rows = complete(corpus, min_count=2, min_probability=1.0)
    assert [row[0] for row in rows] == ["chax", "shax", "tash"]
    _, rows = complete(corpus, sources=("lm",))
    assert {row[0] for row in rows} == {"chax", "shax"}


def test_nothing_is_generated_where_nothing_is_missing(corpus):
    words = ["chax", "tash", "zoo", "shax"]
    more = "".join(f"{word} S\n" for word in words)
    (corpus / "lexicon.txt").write_text(LEXICON + more)
    _, rows = complete(corpus)
    assert rows == []
    assert MARK not in (corpus / "g2p/lexicon.txt").read_text()


def test_a_model_with_other_phones_is_refused(corpus):
    other = corpus / "other.txt"
    other.write_text("cat K A2 T\n")
    train_model(other, corpus / "model", options=LangOptions())
    with pytest.raises(UserError, match="lacks phones of the model: A2"):
        complete_lexicon(
            corpus / "lexicon.txt", corpus / "out",
            options=LangOptions(), cuts=corpus / "cuts.jsonl.gz",
            model=corpus / "model",
        )  # fmt: skip
