# Builds of torch for GPUs bring Triton, others do not: types must be the same with both.
from typing import Any

def __getattr__(name: str) -> Any: ...
