"""The section of simulation: what was done, and utterances to hear beside others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from lhotse.audio.utils import AudioLoadingError, DurationMismatchError
from lhotse.cut import MonoCut

from latflow.corpus.manifests import read_cuts, supervision_of, text_of
from latflow.errors import UserError
from latflow.features.frames import CUTS
from latflow.features.live import LiveFrames
from latflow.report.examples import (
    AXIS_LEFT,
    AXIS_WIDTH,
    heard_and_seen,
    sound_and_picture,
)
from latflow.report.inputs import Results, read_json
from latflow.report.page import (
    Beside,
    Block,
    Example,
    Heading,
    Note,
    Section,
    Table,
    Words,
    missing,
)
from latflow.simulation.records import Record, read_records
from latflow.simulation.replay import evenly
from latflow.simulation.simulator import Simulator
from latflow.training.records import DrawnRecords

LEAD = (
    "Test sets that were made of others by simulation: what was done to them, and the "
    "same utterance in each; utterances of the training set beside what systems that "
    "simulate in training read in their first epoch."
)


def simulation_section(results: Results) -> Section | None:
    """Show simulated sets and training data; None where the recipe has none."""
    made = results.options.corpus.simulated
    trained = _trained(results)
    if not made and not trained:
        return None
    section = Section("simulation", "Simulation", LEAD)
    there = {
        name: read_json(
            _folder(results, name) / "simulation.json", dict[str, int | float]
        )
        for name in made
    }
    rows = [
        {"set": name, "of": made[name].of}
        | {
            kind.replace("_", " "): count if isinstance(count, int) else f"{count:g}"
            for kind, count in counts.items()
        }
        for name, counts in there.items()
        if counts is not None
    ]
    if rows:
        section.blocks.append(Table(rows, {"set", "of"}))
    section.blocks += [
        missing(f"simulated set {name}", "corpus")
        for name, counts in there.items()
        if counts is None
    ]
    for source in dict.fromkeys(options.of for options in made.values()):
        names = [n for n in made if made[n].of == source and there[n] is not None]
        if names and (_folder(results, source) / "cuts.jsonl.gz").is_file():
            section.blocks += _compared(results, source, names)
    for frames, systems in trained.items():
        section.blocks += _drawn(results, frames, systems)
    return section if section.blocks else None


def _trained(results: Results) -> dict[Path, list[str]]:
    """Return the systems that simulate in training, by the frames that they read."""
    recipe, found = results.recipe, dict[Path, list[str]]()
    for name, network in recipe.networks.items():
        if network.options.data.simulation is not None:
            frames = f"streams/{network.frames.name}/frames/{network.training_set}"
            found.setdefault(results / frames, []).append(name)
    return found


def _drawn(results: Results, frames: Path, systems: list[str]) -> Iterator[Block]:
    """Yield utterances of training, as they are beside what systems draw for them."""
    if not results.options.report.num_simulated:
        return
    names = ", ".join(systems)
    if not (frames / CUTS).is_file():
        yield missing(f"training data of {names}", f"nnet_{systems[0]}")
        return
    seed, networks = results.options.seed, results.recipe.networks
    try:
        drawn = {
            name: DrawnRecords(frames, networks[name].options.data, seed=seed, epoch=0)
            for name in systems
        }
        speech = drawn[systems[0]].speech
        simulator = Simulator(speech, rate=speech.sample_rate)
        for i in _short(speech, results):
            yield from _draws_of(i, drawn, speech, simulator)
    except UserError as error:
        yield Note(f"Draws of {names} cannot be shown: {error}", is_missing=True)


def _short(speech: LiveFrames, results: Results) -> list[int]:
    """Return the utterances of a training set that are shown."""
    options = results.options.report
    longest = options.max_example_duration * speech.sample_rate
    possible = [i for i in range(len(speech)) if speech.num_samples(i) <= longest]
    return evenly(possible, options.num_simulated)


def _draws_of(
    i: int,
    drawn: Mapping[str, DrawnRecords],
    speech: LiveFrames,
    simulator: Simulator,
) -> Iterator[Block]:
    """Yield utterance i as it is, beside what systems draw for it."""
    clean = speech.samples(i)
    signals = {"as it is": ("as it is", clean)}
    for name, records in drawn.items():
        record = records.of(i)
        made = simulator.apply(records.audio.absolute(record), clean)
        made = np.atleast_2d(made)[0]
        # volumes may go above full scale, which files of integers do not
        peak = max(1.0, float(np.abs(made).max()))
        signals[name] = describe_record(record), made / peak
    yield Heading(f"{speech.utt_id(i)}: {speech.texts[i]}")
    yield Beside(
        [
            _example(
                name,
                what,
                heard_and_seen(samples, speech.sample_rate, []),
                seconds=len(samples) / speech.sample_rate,
                speaker=speech.speaker(i),
                text=speech.texts[i],
            )
            for name, (what, samples) in signals.items()
        ]
    )


def _folder(results: Results, name: str) -> Path:
    return results / f"corpus/{name}"


def _compared(results: Results, source: str, names: list[str]) -> Iterator[Block]:
    """Yield utterances of a set, as they are beside what they were made into."""
    options = results.options.report
    longest = options.max_example_duration
    possible = [
        utterance
        for record in read_records(_folder(results, names[0]) / "records.jsonl")
        for utterance, num_samples in _utterances(record)
        if record.is_simulated and num_samples <= longest * record.rate
    ]
    chosen = evenly(possible, options.num_simulated)
    cuts = {name: _cuts(_folder(results, name), chosen) for name in (source, *names)}
    records = {name: _records(_folder(results, name), chosen) for name in names}
    for utterance in chosen:
        text = text_of(cuts[source][utterance])
        yield Heading(f"{utterance}: {text}")
        examples: list[Example] = []
        for name in (source, *names):
            what = "as it is"
            if name in records:
                what = describe_record(records[name][utterance])
            try:
                cut = cuts[name][utterance]
                supervision = supervision_of(cut)
                examples.append(
                    _example(
                        name,
                        what,
                        sound_and_picture(cut, []),
                        seconds=cut.duration,
                        speaker=supervision.speaker or "",
                        text=supervision.text or "",
                    )
                )
            except (OSError, AudioLoadingError, DurationMismatchError) as error:
                reason = str(error).partition("\n")[0]
                note = f"{utterance} of {name} cannot be read any more: {reason}"
                yield Note(note, is_missing=True)
        yield Beside(examples)


def _cuts(folder: Path, chosen: Collection[str]) -> dict[str, MonoCut]:
    """Return some cuts of a set."""
    found = read_cuts(folder / "cuts.jsonl.gz")
    return {cut.id: cut for cut in found if cut.id in chosen}


def _records(folder: Path, chosen: Collection[str]) -> dict[str, Record]:
    """Return the records of some utterances of a set."""
    return {
        utterance: record
        for record in read_records(folder / "records.jsonl")
        for utterance, _ in _utterances(record)
        if utterance in chosen
    }


def _utterances(record: Record) -> Iterator[tuple[str, int]]:
    """Yield the utterances that a record is of, with their lengths in samples."""
    if not record.turns:
        yield record.utterance, record.num_samples
    for turn in record.turns:
        yield turn.utterance, turn.num_samples


def _example(
    name: str,
    what: str,
    shown: tuple[str, str],
    *,
    seconds: float,
    speaker: str,
    text: str,
) -> Example:
    """Return an utterance of a set to hear and see; of several channels the first."""
    audio, svg = shown
    return Example(
        utterance=name,
        speaker=speaker,
        summary=f"{seconds:.1f} s: {what}",
        audio=audio,
        svg=svg,
        left=AXIS_LEFT,
        width=AXIS_WIDTH,
        reference=Words([(word, "ok") for word in text.split()]),
        hypothesis=Words([]),
    )


def describe_record(record: Record) -> str:
    """Return what was done to an utterance, for a reader."""
    return "; ".join(_describe(record)) or "as it is"


def _describe(record: Record) -> Iterator[str]:
    """Yield what was done, one thing after another."""
    if record.speed is not None and record.speed != 1.0:
        yield f"speed {record.speed:g}"
    if record.is_simulated:
        yield from _describe_sounds(record)
    if record.volume is not None:
        yield f"volume {record.volume:.2f}"


def _describe_sounds(record: Record) -> Iterator[str]:
    """Yield what is added to the speech, and how it is recorded."""
    if record.turns:
        number = len({turn.speaker for turn in record.turns})
        yield f"in a conversation of {number} speakers"
    if record.array is not None:
        yield f"first of {len(record.array)} microphones"
    yield from _describe_room(record)
    if record.response is not None:
        yield f"response {Path(record.response).name}"
    for speaker in record.speakers:
        yield (
            f"{speaker.utterance} in {speaker.overlap:.0%} of it, SIR "
            f"{speaker.sir:.1f} dB"
        )
    for noise in record.noises:
        source = Path(noise.file).name if noise.file else f"{noise.spectrum} noise"
        yield f"{noise.name} ({source}), SNR {noise.snr:.1f} dB"
    if (device := record.device) is not None:
        effects = {
            "gain {:.1f} dB": device.gain,
            "low cut {:.0f} Hz": device.low_cut,
            "high cut {:.0f} Hz": device.high_cut,
            "{:.1%} clipped": device.clipped,
        }
        yield from (f.format(v) for f, v in effects.items() if v is not None)
        if device.telephone:
            yield "telephone"


def _describe_room(record: Record) -> Iterator[str]:
    """Yield what is known of a generated room, and of who walks there."""
    room, movement = record.room, record.movement
    if room is None:
        return
    size = " x ".join(f"{side:.1f}" for side in room.size)
    distance = np.linalg.norm(np.subtract(room.source, room.microphone))
    # the speakers of a conversation are at different distances
    place = "" if record.turns else f", speaker at {distance:.1f} m"
    high = f" ({room.t60 * room.high_t60:.2f} s at 8 kHz)" if room.high_t60 else ""
    yield f"room of {size} m, T60 {room.t60:.2f} s{high}{place}"
    if movement is not None:
        way = float(np.linalg.norm(np.subtract(movement.end, room.source)))
        walked = min(way, movement.speed * record.num_samples / record.rate)
        yield f"walks {walked:.1f} m at {movement.speed:.1f} m/s"
