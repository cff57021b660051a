"""The decoder with attention: gradients, padding, teaching, descriptions."""

import pytest
import torch
from torch.autograd import gradcheck

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.layer import LayerError, Shape
from latflow.nnet.layers.decoder import (
    END,
    AttentionDecoder,
    AttentionDecoderOptions,
    Memory,
)
from latflow.nnet.network import Network

SMALL = {"units": 4, "embedding": 3, "attention_size": 6, "filters": 2, "reach": 1}
DIM = 4
DECODER = {"class": "attention_decoder", "loss": "attention", **SMALL}


def decoder_of(**options):
    torch.manual_seed(1)
    chosen = AttentionDecoderOptions(**{**SMALL, **options})
    return AttentionDecoder(Shape(DIM), chosen, 6)


def network_of(layers, **more):
    description = NetworkDescription.from_config({"layers": layers, **more})
    return Network(description, 3, {"unit": 6, "label": 6, "pdf": 4})


@pytest.mark.parametrize(
    ("attention", "heads"), [("location", 1), ("location", 2), ("content", 2)]
)
def test_gradients_of_the_attention(attention, heads):
    decoder = decoder_of(attention=attention, heads=heads).double()
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    values = torch.randn(2, 4, DIM, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    query = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    before = torch.rand(2, heads, 4, dtype=torch.float64, requires_grad=True)

    def weigh(query, before, keys, values):
        memory = Memory(values, keys, padding)
        weights = decoder.attend(query, before, memory)
        return weights @ values

    assert gradcheck(weigh, (query, before, keys, values))
    weights = decoder.attend(query, before, Memory(values, keys, padding))
    torch.testing.assert_close(weights.sum(2), torch.ones_like(weights[:, :, 0]))
    assert not weights[1, :, 2:].any()


@pytest.mark.parametrize("heads", [1, 2])
def test_gradients_of_all_steps(heads):
    decoder = decoder_of(num_layers=2, heads=heads).double()
    units = torch.tensor([[2, 5], [1, 1]])
    lengths = torch.tensor([3, 2])

    def teach(values):
        return decoder.teach(decoder.memory(values, lengths), units)

    values = torch.randn(2, 3, DIM, dtype=torch.float64, requires_grad=True)
    assert gradcheck(teach, (values,))


@pytest.mark.parametrize("heads", [1, 2])
def test_a_batch_gives_each_sequence_what_it_gives_alone(heads):
    decoder = decoder_of(heads=heads).eval()
    values, lengths = torch.randn(2, 6, DIM), torch.tensor([6, 4])
    units = torch.tensor([[1, 2, 3], [4, 5, END]])
    both = decoder.teach(decoder.memory(values, lengths), units)
    alone = decoder.teach(decoder.memory(values[1:, :4], lengths[1:]), units[1:, :2])
    torch.testing.assert_close(both[1, :3], alone[0])
    state = decoder.start(decoder.memory(values, lengths))
    before, memory = torch.tensor([END, END]), decoder.memory(values, lengths)
    for position in range(4):
        logits, state = decoder.step(before, state, memory)
        torch.testing.assert_close(logits, both[:, position])
        before = units[:, min(position, 2)]


def test_sampling_feeds_the_own_guess_in_training_alone():
    decoder = decoder_of(sampling=1.0)
    memory = decoder.memory(torch.randn(3, 5, DIM), torch.tensor([5, 5, 5]))
    units = torch.tensor([[1, 2, 3, 4]] * 3)
    sampled = decoder.teach(memory, units)
    before, state = torch.zeros(3, dtype=torch.int64), decoder.start(memory)
    for position in range(5):
        logits, state = decoder.step(before, state, memory)
        torch.testing.assert_close(sampled[:, position], logits)
        before = logits.argmax(1)
    assert not torch.equal(sampled, decoder.eval().teach(memory, units))


def test_location_alone_looks_at_the_weights_before():
    memory_of = torch.randn(1, 5, DIM)
    for attention, is_same in (("content", True), ("location", False)):
        decoder = decoder_of(attention=attention)
        memory = decoder.memory(memory_of, torch.tensor([5]))
        query, before = torch.randn(1, 4), torch.rand(1, 1, 5)
        one = decoder.attend(query, before, memory)
        other = decoder.attend(query, 1 - before, memory)
        assert torch.allclose(one, other) is is_same


def test_each_head_attends_with_its_part_of_the_numbers():
    """The equations of the class, a head and a frame at a time."""
    decoder = decoder_of(heads=2).eval()
    values, lengths = torch.randn(1, 5, DIM), torch.tensor([4])
    memory, query = decoder.memory(values, lengths), torch.randn(1, 4)
    before = torch.softmax(torch.randn(1, 2, 5), 2)
    found = decoder.attend(query, before, memory)[0]
    state = decoder.query(query[0])
    for head, part in enumerate((slice(0, 3), slice(3, 6))):
        energies = []
        for time in range(4):
            around = [
                before[0, head, t] if 0 <= t < 5 else 0.0 for t in (time - 1, time)
            ]
            around.append(before[0, head, time + 1])
            place = decoder.location(decoder.filters(torch.tensor(around)))
            inner = state[part] + decoder.key(values[0, time])[part] + place
            energies.append(decoder.energy.weight[0, part] @ torch.tanh(inner))
        wanted = torch.softmax(torch.stack(energies), 0)
        torch.testing.assert_close(found[head, :4], wanted)
    assert not found[:, 4].any()
    _, after = decoder.step(torch.tensor([END]), decoder.start(memory), memory)
    parts = [after.weights[0, h] @ decoder.value(values[0]) for h in range(2)]
    context = torch.cat((parts[0][:2], parts[1][2:]))
    torch.testing.assert_close(after.context[0], context)
    torch.testing.assert_close(after.attention, after.weights.mean(1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"heads": 4}, "4 heads do not divide attention_size 6"),
        ({"heads": 3}, "3 heads do not divide the input size 4"),
    ],
)
def test_heads_that_do_not_divide_are_refused(options, told):
    with pytest.raises(LayerError, match=told):
        decoder_of(**options)


def test_a_network_gives_the_encoders_frames():
    encoder = {"class": "linear", "size": 7}
    net = network_of({"encoder": encoder, "decoder": DECODER}).eval()
    name, decoder = net.decoder
    features, lengths = torch.randn(2, 5, 3), torch.tensor([5, 3])
    found = net(features, lengths, layers=["encoder", name])
    assert torch.equal(found["decoder"].logits, found["encoder"].logits)
    assert found["decoder"].logits.shape == (2, 5, 7)
    assert (name, decoder.output.out_features) == ("decoder", 6)
    assert net.outputs["decoder"].num_classes == 6
    with pytest.raises(UserError, match="no output .* has the loss attention"):
        _ = network_of({"output": {"class": "output"}}).decoder


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ({"it": {"class": "attention_decoder"}}, "is an output - add loss: attention"),
        ({"it": {**DECODER, "loss": "ctc"}}, "is an output - add loss: attention"),
        ({"it": {"class": "output", "loss": "attention"}}, "set class: attention_d"),
        ({"it": DECODER, "other": {**DECODER, "from": "data"}}, "two decoders: it"),
        ({"it": {**DECODER, "target": "label"}}, "has no target label"),
        ({"it": {**DECODER, "units": 0}}, "units is 0, below 1"),
    ],
)
def test_wrong_descriptions_are_refused(layers, told):
    with pytest.raises(UserError, match=told):
        NetworkDescription.from_config({"layers": layers})


def test_a_decoder_sees_no_context_beyond_the_ends():
    with pytest.raises(UserError, match="does not work with edges: repeat"):
        network_of({"decoder": DECODER}, edges="repeat")
