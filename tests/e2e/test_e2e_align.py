"""`latflow align`: a folder of audio and texts to TextGrids; once is enough."""

import json
import os
import subprocess
import sys

import pytest

from latflow.cli.main import main
from latflow.corpus.espeak import Utterance, speak_job
from latflow.corpus.grammar import lexicon_lines
from latflow.corpus.textgrid import Interval, read_tiers, textgrid
from latflow.scoring.boundaries import compare_labels, read_labels, summary

pytestmark = pytest.mark.slow
TEXTS = (
    "wash the red cup",
    "bring the captain a cup of tea",
    "wash the blue bowl",
    "sing to the cat",
)


@pytest.fixture
def corpus(tmp_path):
    """Two voices who say the same sentences, some of them twice."""
    (tmp_path / "lexicon.txt").write_text("".join(f"{x}\n" for x in lexicon_lines()))
    for voice in ("m1", "f1"):
        folder = tmp_path / "corpus" / voice
        folder.mkdir(parents=True)
        utterances = []
        for number in range(12):
            text = TEXTS[number % len(TEXTS)]
            path = folder / f"{number:02}.flac"
            path.with_suffix(".txt").write_text(f"{text.capitalize()}.")
            utterances.append(
                Utterance(
                    text=text, rate=150 + 3 * number, pitch=50, lead_s=0.2, tail_s=0.2,
                    peak_db=-3.0, snr_db=30.0, noise_key=[number], path=str(path),
                )
            )  # fmt: skip
        job = {"voice": f"en-us+{voice}", "seed": 1, "sample_rate": 16000}
        speak_job({**job, "utterances": utterances})
    return tmp_path


def test_folder_is_aligned_once(corpus):
    command = [sys.executable, "-m", "latflow.cli.main", "align"]
    command += [str(corpus / name) for name in ("corpus", "lexicon.txt", "out")]
    command += ["--cores", "2"]
    first, second = (
        subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ}
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Train the speaker-adapted system sat" in first.stdout
    assert "24 utterances of 24 recordings are aligned" in first.stdout
    for number in range(12):
        path = corpus / f"out/textgrid/f1/{number:02}.TextGrid"
        words, phones = read_tiers(path)
        assert (words.name, phones.name) == ("words", "phones")
        spoken = " ".join(interval.text for interval in words.intervals)
        assert spoken == TEXTS[number % len(TEXTS)].upper()
        assert len(phones.intervals) > len(words.intervals)
    assert second.returncode == 0
    assert "Train" not in second.stdout
    check_learning(corpus)


def check_learning(corpus):
    """Someone sets all boundaries 20 ms later: so does what learns from it."""
    by_hand = corpus / "by_hand"
    for path in (corpus / "out/textgrid").rglob("*.TextGrid"):
        tiers = {
            tier.name: [Interval(a + 0.02, b + 0.02, t) for a, b, t in tier.intervals]
            for tier in read_tiers(path)
        }
        made = by_hand / path.relative_to(corpus / "out/textgrid")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(textgrid(tiers, 60.0))
    better, again = corpus / "better", corpus / "again"
    learn = ["learn-boundaries", str(corpus / "out"), str(by_hand), str(better)]
    assert main([*learn, "--json", str(corpus / "learnt.json")]) == 0
    told = json.loads((corpus / "learnt.json").read_text())
    assert told["after"]["median_ms"] < told["before"]["median_ms"]
    given = [str(corpus / name) for name in ("corpus", "lexicon.txt")]
    assert main(["align", *given, str(again), "--model", str(better)]) == 0
    found = read_labels(again / "textgrid", "phones")
    wanted = read_labels(by_hand, "phones")
    before = read_labels(corpus / "out/textgrid", "phones")
    errors = [summary(compare_labels(wanted, x).all) for x in (before, found)]
    assert errors[1]["median_ms"] < 10 < errors[0]["median_ms"]
    assert len((again / "phones.ctm").read_text().split("\n")[1].split()) == 10
    (line, *_) = (again / "alignments.jsonl").read_text().splitlines()
    low, high = json.loads(line)["words"][1]["start_within"]
    assert 0 < low < high
    assert (
        main(["learn-boundaries", str(again), str(by_hand), str(corpus / "more")]) == 0
    )
    assert main(["learn-boundaries", str(by_hand), str(by_hand), str(better)]) == 1


def test_words_without_pronunciation_get_one_where_asked(corpus, capsys):
    known = (corpus / "lexicon.txt").read_text().splitlines()
    lacking = [line for line in known if line.split()[0] not in {"TEA", "BOWL"}]
    (corpus / "lexicon.txt").write_text("".join(f"{line}\n" for line in lacking))
    given = [str(corpus / name) for name in ("corpus", "lexicon.txt")]
    assert main(["validate", *given]) == 0
    assert "latflow align: --g2p" in capsys.readouterr().out
    assert main(["validate", *given, "--g2p", "train"]) == 0
    told = capsys.readouterr().out.splitlines()
    listed = told[
        told.index("pronunciations of words that the lexicon lacks, generated:") :
    ]
    assert {line.split()[0] for line in listed[1:]} == {"TEA", "BOWL"}
    assert main(["align", *given, str(corpus / "out"), "--g2p", "train"]) == 0
    rows = (corpus / "out/generated.tsv").read_text().splitlines()[1:]
    assert {row.split("\t")[0] for row in rows} == {"TEA", "BOWL"}
    words, phones = read_tiers(corpus / "out/textgrid/f1/01.TextGrid")
    last = words.intervals[-1]
    spoken = [i.text for i in phones.intervals if i.start >= last.start - 1e-6]
    assert last.text == "TEA"
    assert " ".join(spoken) in [row.split("\t")[2] for row in rows if "TEA" in row]
    again = corpus / "again"
    package = str(corpus / "out/package")
    command = ["align", *given, str(again), "--model", package, "--adapt"]
    assert main([*command, "--g2p", "train"]) == 0
    assert (again / "generated.tsv").read_text().count("TEA")
    assert (again / "package/package.json").is_file()
    assert main([*command, "--g2p", str(corpus / "none")]) == 1
    assert "no such model" in capsys.readouterr().err
