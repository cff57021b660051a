"""The device of these tests: a GPU, where there is one, and always a pretended one.

A test here holds what a device gives to what the processor gives, by tolerances that
it states. On the pretended device (`fixtures.pretended_device`) the same operations
run on the processor: this shows tensors that are in the wrong place, and that the ways
of computing for other devices are right, but nothing of CUDA's own kernels.
"""

import pytest
import torch
from fixtures.pretended_device import CUDA, NAME, pretended_device
from fixtures.sequence_system import make_system


@pytest.fixture(params=[CUDA, NAME])
def device(request):
    """The device."""
    if request.param == NAME:
        with pretended_device() as pretended:
            yield pretended
        return
    # Both have to compute on the same numbers.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [setting.allow_tf32 for setting in settings]
    for setting in settings:
        setting.allow_tf32 = False
    yield torch.device("cuda")
    for setting, value in zip(settings, before, strict=True):
        setting.allow_tf32 = value


@pytest.fixture(scope="session")
def system(tmp_path_factory, repository):
    """A small language with lattices."""
    return make_system(tmp_path_factory.mktemp("sequence"), repository)
