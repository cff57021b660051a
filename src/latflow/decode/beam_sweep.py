"""Stage `sweep_beams`: what a wider beam buys, in word errors, and costs, in time.

Dev is decoded again at each beam and scored with the scales that were chosen before.
Written is a table with a row for each beam: `COLUMNS`.

Public: `sweep_beams`, `COLUMNS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latflow.decode.gmm_scorer import GmmScorer
from latflow.decode.network import NetworkScorer
from latflow.decode.recogniser import Recogniser
from latflow.decode.scorer import Scorer
from latflow.decode.tally import Tally
from latflow.decode.tune import read_scales, words_of
from latflow.features.frames import FrameStore
from latflow.features.live import open_frames
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.gmm.system import GmmSystem
from latflow.lang.directory import Lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.logs import progress
from latflow.parallel import map_in_order
from latflow.scoring.alignment import ErrorCounts, count_errors
from latflow.scoring.results import write_tsv
from latflow.scoring.text import WordFilter

COLUMNS = ("beam", "rtf", "wer", "ins", "del", "sub", "words", "depth", "active")


def sweep_beams(
    frames_dir: str | Path,
    graph: str | Path,
    model_dir: str | Path,
    lang_dir: str | Path,
    decode_dir: str | Path,
    tune_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
) -> None:
    """Decode a set at several beams.

    Args:
        frames_dir: features of the set.
        graph: `HCLG.fst`.
        model_dir: folder of the system, GMM or network.
        lang_dir: language directory that the graph was made of.
        decode_dir: where the set was decoded before; an adapted system takes the
            transforms of the speakers from there (`trans.ark`).
        tune_dir: where the `scales.json` with the chosen `lmwt` and `wip` is, and
            `beams.tsv` is written: `rtf` is processor time of log-likelihoods and
            search over the duration of the speech, `wer` in per cent, `depth` in
            lattice arcs a frame, `active` in tokens a frame.
        options: section `decode` of the configuration, with `beams` to try, and from
            its section `score` how words are compared.
        threads: utterances searched at a time.

    Raises:
        UserError: the parts do not fit each other.
    """
    lang, keep = Lang.load(lang_dir), WordFilter.from_options(options)
    scorer = _scorer(frames_dir, Path(model_dir), Path(decode_dir), options)
    store = scorer.store
    recogniser = Recogniser.load(scorer, graph, lang, options)
    recogniser.warm_up()
    references = dict(zip(store.utt_ids, store.texts, strict=True))
    chosen = read_scales(Path(tune_dir, "scales.json"))
    scale = Scales.from_lmwt(chosen["lmwt"], chosen["wip"])
    rows = []
    for beam in sorted(options["beams"]):
        tally, errors = Tally(store.frame_shift, threads), ErrorCounts()
        results = map_in_order(
            recogniser.with_beam(options, beam).work, range(len(store)), threads
        )
        for result in progress(results, f"beam {beam:g}", total=len(store)):
            tally.add(result)
            heard: list[str] = []
            if result.decoded is not None:
                path = best_paths(result.decoded.lattice, [scale])[0]
                heard = keep(words_of(path, lang, graph, result.utterance))
            reference = keep(references[result.utterance].split())
            errors += count_errors(reference, heard, rule=options["alignment"])
        rows.append(
            (
                f"{beam:g}",
                f"{tally.real_time_factor:.5f}",
                f"{errors.wer:.3f}",
                errors.ins,
                errors.del_,
                errors.sub,
                errors.words,
                f"{tally.mean_depth:.3f}",
                f"{tally.mean_active:.1f}",
            )
        )
    write_tsv(Path(tune_dir, "beams.tsv"), COLUMNS, rows)


def _scorer(
    frames_dir: str | Path,
    model_dir: Path,
    decode_dir: Path,
    options: Mapping[str, Any],
) -> Scorer:
    """The scores of a system, whatever kind it is."""
    if (model_dir / "network.yaml").is_file():
        return NetworkScorer.load(
            open_frames(frames_dir),
            model_dir,
            options["device"],
            prior_scale=options["prior_scale"],
        )
    system = GmmSystem.load(model_dir)
    scorer = GmmScorer.of(FrameStore.load(frames_dir), system)
    if not system.is_speaker_adapted:
        return scorer
    return scorer.adapted(SpeakerTransforms.load(decode_dir / "trans.ark"))
