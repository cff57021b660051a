"""What a training draws for its utterances, as records that do it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from latflow.features.source import open_frames
from latflow.nnet.normalization import Normalizer
from latflow.simulation.records import Record
from latflow.training.data_options import BatchOptions
from latflow.training.readers import LiveReader, in_pass, open_reader


class DrawnRecords:
    """Records of the utterances of a training set in an epoch.

    Epochs of one pass share the draws of an utterance: there is one of each, whether
    the epoch has it or not.

    Args:
        frames_dir: features of the training set.
        options: with `simulation`.
        seed: of the training.
        epoch: from 0.

    Attributes:
        speech: the set.
        audio: recordings of the simulation.

    Raises:
        UserError: see `in_pass`.
    """

    def __init__(
        self, frames_dir: str | Path, options: BatchOptions, *, seed: int, epoch: int
    ) -> None:
        # not on the device of the training: draws are made without one
        reader = open_reader(open_frames(frames_dir), Normalizer())
        reader = in_pass(reader, options, seed, options.pass_of(epoch))
        assert isinstance(reader, LiveReader)
        assert reader.simulation is not None
        self._reader, self._simulation = reader, reader.simulation
        draws = options.perturbation
        self._draws_volumes = draws is not None and draws.volume is not None
        self.speech, self.audio = reader.live, reader.simulation.drawing.audio

    def __len__(self) -> int:
        return len(self.speech)

    def __iter__(self) -> Iterator[Record]:
        return map(self.of, range(len(self)))

    def of(self, i: int) -> Record:
        """Return the record of utterance i, as a file of records has it."""
        record = self._simulation.record(i, self._reader.num_samples(i))
        speed, volume, drawn = None, self.speech.volume(i), self._reader.perturbation
        if drawn is not None:
            speed = float(drawn.speed[i])
            volume *= float(drawn.volume[i])
        is_drawn = self._draws_volumes or volume != 1.0
        changes = {"speed": speed, "volume": volume if is_drawn else None}
        return self.audio.relative(record.model_copy(update=changes))
