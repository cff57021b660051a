"""One thread for torch in the tests of this folder.

Transforms may round differently with several, and the stages, which tests compare their
own calls with, use one.
"""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)
