"""Several networks of one training, fused into one: `training.ensemble`.

Each has its own seed, of its first parameters and of what is drawn in training, and its
own checkpoints. On a processor they are trained side by side, each by a share of the
threads, or several by one: a step of a small network is hardly shorter with two
threads, so that two networks take hardly longer than one. On GPUs, and with several
ranks, they are trained one after another.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from latflow.files import atomic_directory, write_json
from latflow.nnet.score_fusion import fuse_models
from latflow.training.distributed import Backend, Rank
from latflow.training.job import Job, job_values
from latflow.training.launch import launch, write_job

_TRAIN = "latflow.training.task:train_rank"


def train_ensemble(
    job: Job,
    task: str,
    device: str,
    train: Callable[[Job], None],
    *,
    are_parallel: bool,
) -> None:
    """Train the networks that are not yet there, and fuse them.

    Args:
        job: of the whole; the first network has its seed.
        task: `module:name` of the kind of training.
        device: `cpu` or `cuda`.
        train: trains one network, alone.
        are_parallel: train several at a time.

    Raises:
        UserError: a training fails, or the networks cannot be fused.
        Interrupted: SIGTERM came; the checkpoints are written.
    """
    members = _members(job)
    size = _number_at_a_time(len(members), job.threads) if are_parallel else 1
    each = max(1, job.threads // size)
    missing = [member for member in members if not member.out_dir.is_dir()]
    for begin in range(0, len(missing), size):
        group = missing[begin : begin + size]
        if not are_parallel:
            train(group[0])
            continue
        arguments = {
            "task": task,
            "jobs": [job_values(replace(member, threads=each)) for member in group],
            "device": device,
        }
        launch(
            write_job(job.folder / "job.json", f"{__name__}:train_member", arguments),
            ranks=len(group),
            backend="none",
            threads=each * len(group),
        )
    _fuse([member.out_dir for member in members], job.out_dir)
    for each in (*members, job):
        shutil.rmtree(each.folder, ignore_errors=True)


def train_member(
    backend: Backend, *, task: str, jobs: Sequence[Mapping[str, Any]], device: str
) -> None:
    """Train one of the networks, in a process that was started for it.

    Args:
        backend: of a rank that is alone.
        task: `module:name` of the kind of training.
        jobs: values of the networks' jobs.
        device: `cpu` or `cuda`.
    """
    job = jobs[Rank.of().rank]
    resolve_name(_TRAIN)(backend, task=task, job=job, device=device)


def _number_at_a_time(networks: int, threads: int) -> int:
    """Return how many are trained side by side, so that no thread is idle.

    Those that are left over when each thread has its networks run beside them: three
    networks on two threads take the time of one and a half.
    """
    rounds = max(1, networks // max(1, threads))
    return math.ceil(networks / rounds)


def _members(job: Job) -> list[Job]:
    """Return the jobs of the networks, whose models lie beside their checkpoints."""
    options = job.options
    return [
        replace(
            job,
            options=options.replace(seed=options.seed + number),
            out_dir=job.folder / f"member{number + 1}",
            identity={**job.identity, "member": number + 1},
        )
        for number in range(options.training.ensemble)
    ]


def _fuse(folders: Sequence[Path], out_dir: Path) -> None:
    """Write the model folder: the fused network, and the record of all trainings.

    That of the first network has the names that it has where it is alone.
    """
    with atomic_directory(out_dir) as folder:
        fuse_models(folders, folder)
        for path in folders[0].iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
            elif not (folder / path.name).exists():
                shutil.copyfile(path, folder / path.name)
        for other in folders[1:]:
            shutil.copyfile(other / "log.jsonl", folder / f"log.{other.name}.jsonl")
            if (other / "tensorboard").is_dir():
                shutil.copytree(
                    other / "tensorboard", folder / "tensorboard" / other.name
                )
        info, meta = (
            json.loads((path / name).read_text(encoding="utf-8"))
            for path, name in ((folders[0], "info.json"), (folder, "meta.json"))
        )
        whole = {**info, "num_parameters": meta["num_parameters"]}
        write_json(folder / "info.json", whole)
