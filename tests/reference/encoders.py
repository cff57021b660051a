"""Small pretrained encoders of random weights, in Hugging Face's form."""

import json

import pytest
import torch

RATE = 16000
# Of 25 ms every 20 ms, as the large ones.
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (6,) * 7,
    "num_conv_pos_embeddings": 5,
    "num_conv_pos_embedding_groups": 2,
}
WHISPER = {
    "d_model": 16,
    "encoder_layers": 3,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 8,
    "max_source_positions": 100,
    "vocab_size": 20,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 4,
}
#: model_type, first part of its classes' names, what its configuration says.
KINDS = {
    "wav2vec2": ("Wav2Vec2", SMALL),
    "wav2vec2_large": (
        "Wav2Vec2",
        SMALL
        | {
            "feat_extract_norm": "layer",
            "do_stable_layer_norm": True,
            "conv_bias": True,
        },
    ),
    "hubert": ("Hubert", SMALL),
    "wavlm": ("WavLM", SMALL),
    "data2vec": (
        "Data2VecAudio",
        SMALL | {"conv_pos_kernel_size": 5, "num_conv_pos_embeddings": 3},
    ),
    "w2v_bert": ("Wav2Vec2Bert", {**SMALL, "position_embeddings_type": "relative_key"}),
    "whisper": ("Whisper", WHISPER),
}


def write_encoder(folder, kind="wav2vec2", *, normalized=None, **changes):
    """Write a folder with a random encoder; return it and transformers' model."""
    transformers = pytest.importorskip(
        "transformers", reason="the extra encoders is not installed"
    )
    name, config = KINDS[kind]
    made = getattr(transformers, f"{name}Config")(**config | changes)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, f"{name}Model")(made).eval()
        with torch.no_grad():  # norms, offsets and gates that do something
            for value in model.parameters():
                value.add_(0.1 * torch.randn(value.shape))
    model.save_pretrained(folder)
    if normalized is not None:
        told = {"do_normalize": normalized, "sampling_rate": RATE}
        (folder / "preprocessor_config.json").write_text(json.dumps(told))
    (folder / "LICENSE").write_text("Terms of the small encoder\n")
    return model
