"""`latflow align`: a folder of audio and texts to TextGrids; once is enough."""

import json
from pathlib import Path

import pytest
import soundfile
from fixtures.documents import RUN_ON_RECORDINGS, commands, marked
from fixtures.mfa_model import SPEECH, old_model, zipped

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


def test_documented_commands_run(corpus, repository, monkeypatch, capsys):
    """A folder is trained on once; who sets all boundaries later is learnt from."""
    monkeypatch.chdir(corpus)
    monkeypatch.setenv("MFA_ROOT_DIR", str(corpus / "mfa"))
    name_files(corpus)
    page = (repository / "docs/align.md").read_text()
    trainings = []
    for words in commands(page, RUN_ON_RECORDINGS):
        if words[0] == "learn-boundaries":
            check_alignments(corpus)
            set_by_hand(corpus)
            words += ["--json", "learnt.json"]
        if words[0] == "import-mfa":
            check_learning(corpus)
        assert main(words) == 0, (words, capsys.readouterr().err[-2000:])
        said = capsys.readouterr().out
        if words == ["align", "recordings/", "lexicon.txt", "aligned"]:
            trainings.append("Train the speaker-adapted system sat" in said)
            assert "24 utterances of 24 recordings are aligned" in said
    assert trainings == [True, False]


def name_files(corpus):
    """Give what there is the names of the document, and put a model of MFA's there."""
    (corpus / "corpus").rename("recordings")
    Path("more").symlink_to("recordings")
    talk = sorted(Path("recordings").rglob("*.flac"))[0]
    soundfile.write("talk.wav", *soundfile.read(talk))
    Path("talk.txt").write_text(talk.with_suffix(".txt").read_text())
    models = corpus / "mfa/pretrained_models/acoustic"
    models.mkdir(parents=True)
    zipped(old_model(corpus / "model"), models / "english_us_arpa.zip")
    # As many phones as the words have, of the model's few.
    lines = (line.split() for line in Path("lexicon.txt").read_text().splitlines())
    entries = [(word, (SPEECH * 9)[: len(phones)]) for word, *phones in lines]
    text = "".join(f"{word} {' '.join(phones)}\n" for word, phones in entries)
    Path("english_us_arpa.dict").write_text(text)


def check_alignments(corpus):
    for number in range(12):
        path = corpus / f"aligned/textgrid/f1/{number:02}.TextGrid"
        words, phones = read_tiers(path)
        assert (words.name, phones.name) == ("words", "phones")
        spoken = " ".join(interval.text for interval in words.intervals)
        assert spoken == TEXTS[number % len(TEXTS)].upper()
        assert len(phones.intervals) > len(words.intervals)


def set_by_hand(corpus):
    """Set all boundaries 20 ms later."""
    for path in (corpus / "aligned/textgrid").rglob("*.TextGrid"):
        tiers = {
            tier.name: [Interval(a + 0.02, b + 0.02, t) for a, b, t in tier.intervals]
            for tier in read_tiers(path)
        }
        made = corpus / "by_hand" / path.relative_to(corpus / "aligned/textgrid")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(textgrid(tiers, 60.0))


def check_learning(corpus):
    """What aligned with the package that has learnt sets boundaries later, too."""
    by_hand, again = corpus / "by_hand", corpus / "more_aligned"
    told = json.loads((corpus / "learnt.json").read_text())
    assert told["after"]["median_ms"] < told["before"]["median_ms"]
    found = read_labels(again / "textgrid", "phones")
    wanted = read_labels(by_hand, "phones")
    before = read_labels(corpus / "aligned/textgrid", "phones")
    errors = [summary(compare_labels(wanted, x).all) for x in (before, found)]
    assert errors[1]["median_ms"] < 10 < errors[0]["median_ms"]
    assert len((again / "phones.ctm").read_text().split("\n")[1].split()) == 10
    (line, *_) = (again / "alignments.jsonl").read_text().splitlines()
    low, high = json.loads(line)["words"][1]["start_within"]
    assert 0 < low < high
    learn = ["learn-boundaries", str(again), str(by_hand), str(corpus / "further")]
    assert main(learn) == 0
    assert main(["learn-boundaries", *[str(by_hand)] * 2, str(corpus / "better")]) == 1


def test_all_marked_documents_are_run(repository):
    assert marked(repository, RUN_ON_RECORDINGS) == ["align"]


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
