"""A pretrained encoder of speech as a layer, from samples on.

It reads features of type `waveform`, windows of samples that overlap, and puts the
signal of each sequence together again; an encoder with its own front end (w2v-BERT,
Whisper) gets what that makes of it. See `latflow.nnet.encoders` for the files.
"""

from __future__ import annotations

import fnmatch
import warnings
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from latflow.nnet.draws import RowDraws
from latflow.nnet.encoder_files import sample_rate_of
from latflow.nnet.encoders import (
    NORMALIZED,
    kind_of,
    load_weights,
    make_model,
    read_config,
)
from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.augment import most_share, spread_spans
from latflow.nnet.layers.encoder_inputs import (
    FRAMES,
    Frames,
    MaskedGroupNorm,
    MelPairs,
    WhisperSpectra,
    beyond_ends,
    normalized_samples,
    signal_of,
    zeroed,
)
from latflow.nnet.options import PretrainedOptions

# Linear maps of attention: of most kinds, and of w2v-BERT.
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_ATTENTION += ("linear_q", "linear_k", "linear_v", "linear_out")
_TOGETHER = 8  # windows of long sequences that go through the encoder at once
_DEFAULT_FREEZE = PretrainedOptions.model_fields["freeze"].default


class Pretrained(Layer):
    """A pretrained encoder of speech, which learns on.

    It may be wav2vec 2.0, HuBERT, WavLM, data2vec-audio, w2v-BERT 2.0 or the encoder of
    Whisper. It reads features of type `waveform` with `dither: 0`, in windows of 25 ms
    every 10 ms. `folder` holds it in Hugging Face's form or torchaudio's; transformers
    makes it (`pip install 'latflow[encoders]'`). A trained model has all in its own
    files.

    Batches give each sequence what it gets alone: normalization over time, attention
    and convolutions leave padding out. Whisper's encoder always sees 30 s, silence
    behind the end. Sequences of more than `longest` frames go in windows that overlap,
    the first from the first frame on; frames within `overlap` of a window's inner edge
    are another's. All is seen, so that such networks are not streamed.

    Where the whole encoder stays, nothing is dropped or masked in it. Masks of frames
    have the encoder's own vector in their place, and follow from the trainer's seed as
    those of `specaugment`.

    Source: Baevski et al. 2020 (wav2vec 2.0); Hsu et al. 2021 (HuBERT); Chen et al.
    2022 (WavLM); Baevski et al. 2022 (data2vec); Barrault et al. 2023 (w2v-BERT 2.0);
    Radford et al. 2022 (Whisper); Hu et al. 2021 (LoRA); Clark et al. 2020 (ELECTRA:
    learning rates by block).

    Attributes:
        draws: random numbers of the batch to come, set by the network; None for keys
            from torch's generator.
    """

    OPTIONS = PretrainedOptions
    HAS_OWN_START: ClassVar[bool] = True

    def __init__(self, shape: Shape, options: PretrainedOptions) -> None:
        super().__init__(shape)
        self.options = options
        self.draws: RowDraws | None = None
        self.config = _config(options)
        try:
            self.kind = kind_of(self.config)
            self.model: Any = make_model(self.config)
        except ValueError as error:
            raise LayerError(str(error)) from error
        self._check_options()
        self._set_input(shape)
        if options.folder is not None and not _is_meta(self.model):
            load_weights(self.model, self.kind, options.folder)
        self._cut_blocks()
        if options.lora_rank:
            self._add_lora()
        self._choose_learnt()
        if options.checkpointing:
            self._add_checkpoints()
        self.mix = None
        if options.weighted:
            self.mix = nn.Parameter(torch.zeros(len(self.blocks) + 1))
        size = self.model.config.hidden_size
        self.shape, self.context = Shape(size), Context(None, None, options.stride)

    @property
    def blocks(self) -> nn.ModuleList:
        """The encoder's blocks, the first one first."""
        inner = self.model if self.kind.reads == "log_mel" else self.model.encoder
        return inner.layers

    # --- set-up -------------------------------------------------------------------

    def _check_options(self) -> None:
        """Refuse options that do not fit the encoder or each other."""
        options, count = self.options, len(self.blocks)
        if options.block > count or options.top_blocks > count:
            raise LayerError(f"the encoder has {count} blocks")
        if options.weighted and options.block >= 0:
            raise LayerError("weighted takes all blocks: leave block out")
        if options.mask_share > most_share(options.mask_width):
            most = most_share(options.mask_width)
            raise LayerError(
                f"mask_share is {most:.2f} at most where mask_width is "
                f"{options.mask_width}"
            )

    def _set_input(self, shape: Shape) -> None:
        """Make what turns windows of samples into the encoder's input.

        Sets the frames of ours for one of the encoder's, and of a window at most.
        """
        options, self.native = self.options, 2
        most = options.longest
        if shape.dim < options.shift or shape.channels != 1:
            raise LayerError(
                f"{shape.dim} numbers a frame are not windows of samples every "
                f"{options.shift}; it reads features of type waveform"
            )
        self.input: nn.Module | None = None
        if self.kind.reads == "fbank":
            self.input = MelPairs(shape, options.sample_rate)
        elif self.kind.reads == "log_mel":
            positions = self.model.config.max_source_positions
            bins = self.model.config.num_mel_bins
            self.input = WhisperSpectra(bins, 2 * positions, options.sample_rate)
            room = self.input.num_samples - shape.dim
            most = min(most, room // options.shift + 1)
        else:
            self._set_convolutions()
        unit = self.native * options.stride
        self.overlap = options.overlap // unit * unit
        self.longest = most // unit * unit
        if self.longest <= 2 * self.overlap:
            raise LayerError(
                f"windows of {self.longest} frames have no room for an overlap of "
                f"{self.overlap} at both sides"
            )

    def _set_convolutions(self) -> None:
        """Find the frames of the convolutions, and let them leave padding out."""
        config, shift = self.model.config, self.options.shift
        hop, self.window = 1, 1
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            self.window, hop = self.window + (kernel - 1) * hop, hop * stride
        self.native, rest = divmod(hop, shift)
        if rest or not self.native:
            raise LayerError(
                f"the encoder has a frame every {hop} samples, no multiple of shift "
                f"{shift}"
            )
        first = self.model.feature_extractor.conv_layers[0]
        if isinstance(getattr(first, "layer_norm", None), nn.GroupNorm):
            first.layer_norm = MaskedGroupNorm.of(first.layer_norm)
        if self.config["model_type"] == "data2vec-audio":
            for layer in self.model.encoder.pos_conv_embed.layers:
                layer.register_forward_hook(zeroed)

    def _cut_blocks(self) -> None:
        """Leave blocks out whose results nobody takes, and drop none that are mixed."""
        if self.options.block >= 0:
            # of Whisper, transformers gives what the last block's norm makes of it
            spare = int(self.kind.reads == "log_mel")
            del self.blocks[max(1, self.options.block + spare) :]
        if self.options.block >= 0 or self.options.weighted:
            self.model.config.layerdrop = 0.0
            self.model.layerdrop = 0.0

    def _add_lora(self) -> None:
        """Put low-rank changes into linear maps of the blocks."""
        options = self.options
        self.model.requires_grad_(False)  # noqa: FBT003 - torch's form
        scale = options.lora_alpha / options.lora_rank
        for name, part in list(self.blocks.named_modules()):
            is_chosen = options.lora_in == "all" or name.endswith(_ATTENTION)
            if isinstance(part, nn.Linear) and is_chosen:
                change = LowRank(part, options.lora_rank, scale)
                parametrize.register_parametrization(part, "weight", change)

    def _choose_learnt(self) -> None:
        """Let parameters stay as the options say; list those that learn."""
        options, names = self.options, dict(self.model.named_parameters())
        for pattern in options.freeze:
            found = fnmatch.filter(names, pattern)
            if not found and options.freeze != _DEFAULT_FREEZE:
                raise LayerError(
                    f"freeze: no parameter {pattern} in the encoder, which has "
                    f"{next(iter(names))} and others"
                )
            for name in found:
                names[name].requires_grad_(False)  # noqa: FBT003 - torch's form
        if options.top_blocks >= 0:
            learnt = self.blocks[len(self.blocks) - options.top_blocks :]
            kept = {id(value) for value in learnt.parameters()}
            for value in names.values():
                if id(value) not in kept:
                    value.requires_grad_(False)  # noqa: FBT003 - torch's form
        self._learnt = [v for v in names.values() if v.requires_grad]
        self._is_waiting = False
        if self.kind.reads == "samples":
            extractor = self.model.feature_extractor
            learns = any(v.requires_grad for v in extractor.parameters())
            extractor._requires_grad = learns

    def _add_checkpoints(self) -> None:
        """Let blocks be computed again.

        Convolutions are not: those that stay keep nothing anyway, and their norms leave
        out the padding of the pass that is under way, see `FRAMES`.
        """
        self.model.activation_checkpointing_enable({"use_reentrant": False})
        if self.kind.reads == "samples":
            for part in self.model.feature_extractor.modules():
                if hasattr(part, "gradient_checkpointing"):
                    part.gradient_checkpointing = False

    def learning_rate_factors(self) -> dict[str, float]:
        """Return factors on the learning rate: less from block to block downwards."""
        decay, count = self.options.learning_rate_decay, len(self.blocks)
        if decay == 1.0:
            return {}
        depth = {id(value): count for value in self.model.parameters()}
        for number, block in enumerate(self.blocks, 1):
            depth |= {id(value): count - number for value in block.parameters()}
        named = self.model.named_parameters()
        return {f"model.{name}": decay ** depth[id(value)] for name, value in named}

    def at_step(self, step: int) -> None:
        """Let the encoder wait for its first step."""
        is_waiting = step <= self.options.freeze_steps
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            for value in self._learnt:
                value.requires_grad_(not is_waiting)
            self.train(self.training)

    @property
    def learns(self) -> bool:
        """Whether anything in the encoder changes now."""
        return any(value.requires_grad for value in self._learnt)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's form
        """Go into training mode; an encoder that stays is evaluated."""
        super().train(mode)
        self.model.train(mode and self.learns)
        return self

    # --- forward ------------------------------------------------------------------

    def forward(self, batch: Padded) -> Padded:
        """Encode: windows of samples [B, T, L] -> [B, ceil(T / stride), D]."""
        if batch.values.shape[1] > self.longest:
            return batch.strided(self._in_windows(batch), self.options.stride)
        return batch.strided(self._encoded(batch), self.options.stride)

    def _in_windows(self, batch: Padded) -> Tensor:
        """Encode long sequences in windows that overlap, [B, ceil(T / stride), D]."""
        stride, overlap = self.options.stride, self.overlap
        step, rows, lengths, places = self.longest - 2 * overlap, [], [], []
        for row, length in enumerate(batch.lengths.tolist()):
            count = max(0, -(-(length - self.longest) // step)) + 1
            for number in range(count):
                first = number * step
                own = batch.values[row, first : min(first + self.longest, length)]
                begin = overlap if number else 0
                end = len(own) if number == count - 1 else self.longest - overlap
                rows.append(own)
                lengths.append(len(own))
                places.append((row, first, begin // stride, -(-end // stride)))
        found: list[Tensor] = []
        for at in range(0, len(rows), _TOGETHER):
            some = slice(at, at + _TOGETHER)
            windows = nn.utils.rnn.pad_sequence(rows[some], batch_first=True)
            found += self._encoded(Padded.of(windows, torch.tensor(lengths[some])))
        frames = -(-batch.values.shape[1] // stride)
        result = found[0].new_zeros(len(batch.values), frames, self.shape.dim)
        for one, (row, first, begin, end) in zip(found, places, strict=True):
            at = first // stride
            result[row, at + begin : at + end] = one[begin:end]
        return result

    def _encoded(self, batch: Padded) -> Tensor:
        """Encode sequences that fit, [B, ceil(T / stride), D]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns):
            hidden, frames = self._states(batch)
        if self.mix is not None:
            weights = self.mix.softmax(0)
            states = torch.stack(hidden, -1)
            values = (states * weights.to(states.dtype)).sum(-1)
        else:
            values = hidden[0]
        return self._at_our_rate(values, frames, batch.values.shape[1])

    def _at_our_rate(self, values: Tensor, frames: Tensor, total: int) -> Tensor:
        """Return values at every `stride`-th frame, between two where none is there.

        Args:
            values: [B, N, D], one for `native` frames.
            frames: int64 [B], those of each sequence.
            total: frames of ours, T.
        """
        stride, native = self.options.stride, self.native
        times = torch.arange(-(-total // stride), device=values.device) * stride
        last = (frames - 1)[:, None]
        before = (times // native).minimum(last)
        found = _rows(values, before)
        if stride % native == 0:
            return found
        share = ((times % native) / native).to(values.dtype)[:, None]
        return torch.lerp(found, _rows(values, (before + 1).minimum(last)), share)

    def _states(self, batch: Padded) -> tuple[list[Tensor], Tensor]:
        """Return results of the blocks that are wanted, [B, N, D], and the frames.

        Args:
            batch: sequences that go through the encoder at once.
        """
        reads = {"samples": self._read_samples, "fbank": self._read_pairs}
        read = reads.get(self.kind.reads, self._read_spectra)
        arguments, frames = read(batch, batch.lengths_there())
        wants_all = self.mix is not None or self.options.block >= 0
        found = self._run(arguments, frames, output_hidden_states=wants_all)
        if self.mix is not None:
            return list(found.hidden_states), frames.last
        if wants_all:
            return [found.hidden_states[self.options.block]], frames.last
        return [found.last_hidden_state], frames.last

    def _run(
        self, arguments: dict[str, Any], frames: Frames, *, output_hidden_states: bool
    ) -> Any:
        token = FRAMES.set(frames if "attention_mask" in arguments else None)
        with warnings.catch_warnings():
            # of WavLM's masks, as transformers passes them on
            warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask")
            try:
                return self.model(
                    **arguments, output_hidden_states=output_hidden_states
                )
            finally:
                FRAMES.reset(token)

    def _read_samples(
        self, batch: Padded, there: Tensor
    ) -> tuple[dict[str, Any], Frames]:
        """Return arguments of an encoder that reads samples, and its frames."""
        config = self.model.config
        signal = signal_of(batch.values, there, self.options.shift)
        count = (there - 1) * self.options.shift + batch.values.shape[2]
        if self.config.get(NORMALIZED):
            signal = normalized_samples(signal, count)
        short = max(0, self.window - batch.values.shape[2])
        signal, count = nn.functional.pad(signal, (0, short)), count + short
        first = (count - config.conv_kernel[0]) // config.conv_stride[0] + 1
        last, total = map(
            self.model._get_feat_extract_output_lengths, (count, signal.shape[1])
        )
        arguments: dict[str, Any] = {"input_values": signal}
        if batch.padding is not None:
            beyond = beyond_ends(count, signal.shape[1])
            arguments["attention_mask"] = (~beyond).long()
        arguments |= self._mask_arguments(batch.values, int(total))
        return arguments, Frames(first, last)

    def _read_pairs(
        self, batch: Padded, there: Tensor
    ) -> tuple[dict[str, Any], Frames]:
        """Return arguments of an encoder that reads pairs of frames, and its frames."""
        assert self.input is not None
        pairs, frames = self.input(batch, there)
        arguments = {
            "input_features": pairs,
            "attention_mask": (~beyond_ends(frames, pairs.shape[1])).long(),
            **self._mask_arguments(batch.values, pairs.shape[1]),
        }
        return arguments, Frames(frames, frames)

    def _read_spectra(
        self, batch: Padded, there: Tensor
    ) -> tuple[dict[str, Any], Frames]:
        """Return arguments of Whisper's encoder, and its frames."""
        assert self.input is not None
        signal = signal_of(batch.values, there, self.options.shift)
        spectra = self.input(signal)
        masks = self._masks(batch.values, spectra.shape[2] // 2)
        if masks is not None:
            masks = masks.repeat_interleave(2, 1)[:, None, :]
            spectra = spectra.masked_fill(masks, 0.0)
        frames = (there + 1) // 2
        return {"input_features": spectra}, Frames(frames, frames)

    def _mask_arguments(self, values: Tensor, total: int) -> dict[str, Tensor]:
        """Return an encoder's arguments that mask frames; empty without a mask."""
        masks = self._masks(values, total)
        return {} if masks is None else {"mask_time_indices": masks}

    def _masks(self, values: Tensor, total: int) -> Tensor | None:
        """Draw the frames that are masked, bool [B, N]; None for none."""
        share = self.options.mask_share
        if not (share and self.model.training) or values.is_meta:
            return None
        draws = self.draws
        if draws is None or len(draws) != len(values):
            draws = RowDraws.at_random(len(values), values.device)
        return spread_spans(total, self.options.mask_width, share, draws)


class LowRank(nn.Module):
    """A change of a linear map's weights, of low rank; zero at the start."""

    def __init__(self, part: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, part.in_features))
        self.up = nn.Parameter(torch.zeros(part.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weights with the change."""
        return weight + self.scale * (self.up @ self.down)


def _config(options: PretrainedOptions) -> dict[str, Any]:
    """Return what the encoder is made of."""
    if (options.folder is None) == (options.config is None):
        raise LayerError("needs a folder with an encoder, or its config, not both")
    if options.folder is None:
        config = dict(options.config or {})
    else:
        rate = sample_rate_of(options.folder)
        if rate not in (None, options.sample_rate):
            raise LayerError(f"sample_rate: the encoder is for {rate} Hz")
        config = read_config(options.folder)
    # above 0 it has a vector for masks
    shares = {"mask_time_prob": options.mask_share, "mask_feature_prob": 0.0}
    return config | shares


def _is_meta(model: nn.Module) -> bool:
    """Return whether a network is counted only, on torch's device `meta`."""
    return any(value.is_meta for value in model.parameters())


def _rows(values: Tensor, at: Tensor) -> Tensor:
    """Return values [B, N, D] of the frames int64 [B, T]."""
    return values.gather(1, at[:, :, None].expand(-1, -1, values.shape[2]))
