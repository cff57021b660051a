"""Whatever a description says, it is refused in plain words or it makes a network."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.nnet.description import NetworkDescription
from latflow.nnet.network import Network
from latflow.nnet.options import facts_of
from latflow.nnet.registry import LAYER_CLASSES

CLASSES = sorted(LAYER_CLASSES.keys() - {"loop", "output", "subnetwork"})


def values_of(option):
    """Values that fit an option now and then."""
    if option.choices:
        return st.sampled_from(option.choices)
    return {
        "integer": st.integers(-1, 7),
        "number": st.floats(-0.5, 1.5),
        "boolean": st.booleans(),
        "string": st.text(max_size=3),
        "array": st.lists(st.integers(-3, 3), max_size=3),
        "names": st.lists(st.text(max_size=3), max_size=3),
        "object": st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    }[option.kind] | st.none()


def options_of(name):
    table = facts_of(LAYER_CLASSES[name].OPTIONS)
    needed = {k: values_of(o) for k, o in table.items() if o.is_required}
    free = {k: values_of(o) for k, o in table.items() if not o.is_required}
    return st.fixed_dictionaries(needed, optional=free)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", CLASSES)
@settings(max_examples=30)
@given(data=st.data())
def test_options_are_refused_or_work(name, data):
    options = data.draw(options_of(name))
    layers = {"it": {"class": name, **options}, "output": {"class": "output"}}
    refusal = None
    try:
        description = NetworkDescription.from_config({"layers": layers})
        net = Network(description, 6, {"pdf": 3}).train()
    except UserError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.startswith("layer it: ")
        return
    features, lengths = torch.randn(2, 5, 6), torch.tensor([5, 2])
    logits, told = net(features, lengths)["output"]
    rate = net.subsampling
    assert logits.shape == (2, -(-5 // rate), 3)
    assert told.tolist() == [-(-5 // rate), -(-2 // rate)]
    logits.sum().backward()
    net.constrain()
    assert net.summary()


@pytest.mark.parametrize("name", CLASSES)
def test_a_misspelt_option_is_refused_and_the_right_one_proposed(name):
    for option in LAYER_CLASSES[name].OPTIONS.model_fields:
        layers = {"it": {"class": name, option + "e": 1}, "output": {"class": "output"}}
        with pytest.raises(UserError, match=f"layer it: unknown key {option}e") as got:
            NetworkDescription.from_config({"layers": layers})
        assert f"did you mean {option}?" in str(got.value)
