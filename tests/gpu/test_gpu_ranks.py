"""Ranks whose tensors lie on GPUs: NCCL, by torch.distributed and by Horovod."""

import importlib.util
from pathlib import Path

import pytest
import torch

from latflow.training.launch import launch, write_job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NEEDS_HOROVOD = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="Horovod is not installed (envs/install_horovod.sh)",
)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("horovod", marks=NEEDS_HOROVOD)]
)
def test_operations_of_ranks(tmp_path, monkeypatch, backend, ranks):
    if ranks > torch.cuda.device_count():
        pytest.skip(f"{ranks} GPUs are needed: NCCL gives each rank one of its own")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=":")
    arguments = {"device": "cuda", "out": str(tmp_path / "results.pt")}
    function = "fixtures.rank_operations:operate_as_rank"
    job = write_job(tmp_path / "job.json", function, arguments)
    launch(job, ranks=ranks, backend=backend, threads=ranks)
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    total = ranks * (ranks + 1) // 2
    assert [values.tolist() for values in found["sums"]] == [[total] * 5] * 3
    assert found["copied"].tolist() == [0.0, ranks, 2.0 * ranks, 3.0 * ranks]
    assert found["numbers"] == [ranks, total - ranks]
    expected = [{"rank": rank, "device": "cuda"} for rank in range(ranks)]
    assert found["gathered"] == expected
    assert found["shared"] == "of rank 0"
