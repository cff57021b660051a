"""Error counts against NIST's own scoring program, on the same files."""

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from latflow.lattice.edit_distance import ErrorCounts, count_errors
from latflow.scoring.transcripts import read_text

SCLITE = shutil.which("sclite") or "/usr/lib/sctk/bin/sclite"
needs_sclite = pytest.mark.skipif(
    not Path(SCLITE).is_file(), reason="sclite not installed (Debian package sctk)"
)
SCORES = re.compile(
    r"^id: \((\S+)\)\n(?:.*\n)*?Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", re.M
)


def write_trn(path, texts, speakers):
    """NIST's form; `sclite -i rm` takes what stands before the first `-` of the id."""
    lines = [
        " ".join([*words, f"({speakers[utt].replace('-', '_')}-{utt})"])
        for utt, words in sorted(texts.items())
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def run_sclite(folder, references, hypotheses, speakers):
    """Counts of each written id, in lower case as sclite prints it."""
    write_trn(folder / "ref.trn", references, speakers)
    write_trn(folder / "hyp.trn", hypotheses, speakers)
    command = [SCLITE, "-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "rm", "-s"]
    done = subprocess.run(
        [*command, "-o", "pra", "stdout"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        name: ErrorCounts(int(ins), int(del_), int(sub), int(c) + int(sub) + int(del_))
        for name, c, sub, del_, ins in SCORES.findall(done.stdout)
    }


def corrupt(words, vocabulary, generator):
    """Drop, replace, double and swap words, as recognizers do."""
    heard = []
    for word in words:
        draw = generator.random()
        if draw < 0.1:
            continue
        heard.append(generator.choice(vocabulary) if draw < 0.25 else word)
        if draw > 0.9:
            heard.append(generator.choice(vocabulary))
    return heard


@needs_sclite
def test_random_strings_score_as_sclite_scores_them(tmp_path):
    generator = random.Random(5)
    references, hypotheses = {}, {}
    for i in range(1500):
        letters = "abcde"[: generator.randint(2, 5)]
        references[f"{i:05d}"] = generator.choices(letters, k=generator.randint(1, 10))
        hypotheses[f"{i:05d}"] = generator.choices(letters, k=generator.randint(0, 10))
    speakers = dict.fromkeys(references, "s")
    theirs = run_sclite(tmp_path, references, hypotheses, speakers)
    ours = {
        f"s-{utt}": count_errors(references[utt], hypotheses[utt], rule="sclite")
        for utt in references
    }
    assert theirs == ours


@needs_sclite
@pytest.mark.parametrize("name", ["digits", "speechocean"])
def test_transcripts_score_as_sclite_scores_them(tmp_path, corpora, name):
    references = read_text(corpora / name / "test" / "text")
    speakers = {
        utt: speaker[0]
        for utt, speaker in read_text(corpora / name / "test" / "utt2spk").items()
    }
    vocabulary = sorted({word for words in references.values() for word in words})
    generator = random.Random(7)
    hypotheses = {
        utt: corrupt(words, vocabulary, generator) for utt, words in references.items()
    }
    theirs = run_sclite(tmp_path, references, hypotheses, speakers)
    ours = {
        f"{speakers[utt].replace('-', '_')}-{utt}": count_errors(
            words, hypotheses[utt], rule="sclite"
        )
        for utt, words in references.items()
    }
    assert theirs == ours
    kaldi = sum(count_errors(references[u], hypotheses[u]).errors for u in references)
    assert kaldi <= sum(counts.errors for counts in ours.values()) <= kaldi + 3
