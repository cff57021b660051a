"""One corpus folder of several; ids of utterances show which one they are from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from latflow.corpus.json_lines import ManifestWriter
from latflow.corpus.manifests import (
    read_cuts,
    read_recordings,
    read_supervisions,
    renamed,
)
from latflow.corpus.perturb import without_speed
from latflow.ledger import Ledger, read_ledger

_END = "-"  # of a source's name, which has none
_READERS: dict[str, Callable[[Path], Iterator]] = {
    "recordings": read_recordings,
    "supervisions": read_supervisions,
    "cuts": read_cuts,
}


def combine_corpora(folders: Mapping[str, Path], out_dir: Path) -> None:
    """Write the manifests and ledgers of several corpus folders as those of one.

    Ids of utterances, recordings and speakers get the name of their corpus before them,
    so that two corpora may have the same ones. Memory does not grow with the corpora.

    Args:
        folders: corpus folders by their names, which have no `-`.
        out_dir: folder to write to; it exists.

    Source: Kaldi `utils/combine_data.sh`, and `utils/copy_data_dir.sh` with its options
    `--utt-prefix` and `--spk-prefix`.
    """
    prefixes = {f"{name}{_END}": folder for name, folder in folders.items()}
    ledger = Ledger("prepare_corpus")
    for name, read in _READERS.items():
        with ManifestWriter(out_dir / f"{name}.jsonl.gz") as writer:
            # sorted by prefix: so the ids are, too
            for prefix, folder in sorted(prefixes.items()):
                for item in read(folder / f"{name}.jsonl.gz"):
                    writer.write(renamed(item, prefix.__add__))
    for prefix, folder in sorted(prefixes.items()):
        for entry in read_ledger(folder / "ledger.jsonl"):
            ledger.entries.append(replace(entry, utterance=prefix + entry.utterance))
    ledger.write(out_dir / "ledger.jsonl")


def source_of(utterance: str) -> str:
    """Return the source of an utterance of a combined corpus, at whatever speed.

    The id of an utterance of any other corpus gives a name that means nothing.
    """
    return without_speed(utterance).partition(_END)[0]
