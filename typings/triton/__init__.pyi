# Builds of torch for GPUs bring Triton, others do not; types are checked alike.
from typing import Any

def __getattr__(name: str) -> Any: ...
