"""All that is only true on a GPU, within a time limit and without a network.

Runs the tests marked `gpu`, then the benchmarks that have a device, each with a limit
of its own within that of the whole; writes one JSON of their reports and prints a
table. What was not reached, or failed, is said. Without a GPU it says so, and runs the
benchmarks on the processor at small sizes (tests marked `gpu` skip).

Packages that this Python lacks are installed from a folder of wheels, beside and not
into it; torch, Numba, NumPy and SciPy must be there.

    python benchmarks/gpu.py --wheels wheels --results results/demo   # make gpu
    python benchmarks/gpu.py --fetch wheels --python-version 3.12     # make gpu-wheels

Results are those of `make demo`: training on lattices needs its language, GMMs,
alignments and frames, serving a package and the audio of a test set.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# By the name that is imported, the package's; those below torch are not carried.
PACKAGES = {
    "annotated_types": "annotated-types",
    "cffi": "cffi",
    "click": "click",
    "cytoolz": "cytoolz",
    "hypothesis": "hypothesis",
    "h5py": "h5py",
    "iniconfig": "iniconfig",
    "intervaltree": "intervaltree",
    "kaldifst": "kaldifst",
    "lhotse": "lhotse",
    "lilcom": "lilcom",
    "packaging": "packaging",
    "pluggy": "pluggy",
    "pycparser": "pycparser",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic_core",
    "pygments": "Pygments",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "safetensors": "safetensors",
    "sortedcontainers": "sortedcontainers",
    "soundfile": "soundfile",
    "threadpoolctl": "threadpoolctl",
    "toolz": "toolz",
    "tqdm": "tqdm",
    "typing_inspection": "typing-inspection",
    "python_multipart": "python-multipart",
    "silero_vad": "silero-vad",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "websockets": "websockets",
    "prometheus_client": "prometheus-client",
    "yaml": "PyYAML",
}
GIVEN = ("torch", "numba", "numpy", "scipy")
TESTS = ("tests/gpu", "tests/unit/training/test_training_data_live.py")
PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
MINUTES = 11.0
RESERVE = 5.0  # seconds to write the report in
NEEDED = {"mmi": "gmm", "mmi_tdnnf": "gmm", "serving": "package/chain"}  # in results
# What figures are held to on an H100; limits are those of the card or of cuDNN's LSTM
# (docs/benchmarks.md).
LFMMI_AIM = "aim 4,000, limit above 10,000"
CE_AIMS = {
    ("tdnnf", "256"): "aim 10,000, limit 90,000 by count of operations",
    ("blstm_3x512", "64"): "aim 2,400, limit 2,800; PyKaldi2, 1 V100: 190",
    ("blstm_3x512", "256"): "aim 6,000, limit 6,200",
}
MMI_AIMS = {
    "blstm_3x512": "aim 1,000, limit 1,700; PyKaldi2, V100s: 176 at best",
    "tdnnf": "aim 1,500",
}
SCORES_AIM = "aim 10,000"
SERVING_AIM = "at most 120 with 1,000 sessions; NVIDIA, A100: 2,000"

Rows = list[tuple[str, Any, str]]


@dataclass(frozen=True)
class Part:
    """A program to run.

    Attributes:
        name: in the report.
        command: arguments of Python.
        limit: seconds.
        rows: figures of its report: what, value, what it is held to.
    """

    name: str
    command: list[str]
    limit: float
    rows: Callable[[Any], Rows] | None = None


def parts(device: str, results: Path, threads: int) -> list[Part]:
    """Return what is run, the most telling first; together within `MINUTES`."""
    on_gpu = device == "cuda"
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-W", "default", "--timeout", "120"]
    shape = [] if on_gpu else ["--sequences", "16", "--frames", "30"]
    place = ["--device", device]

    def script(name: str, *arguments: str) -> list[str]:
        return [f"benchmarks/{name}.py", *arguments]

    def training(network: str, *arguments: str) -> list[str]:
        steps = [] if on_gpu else ["--steps", "2"]
        options = [*place, "--network", network, "--rounds", "1", *arguments, *steps]
        return script("network_training", *options)

    def sequence(network: str) -> list[str]:
        size = ["64", "128", "40"] if on_gpu else ["4", "8", "4"]
        return script(
            "sequence_training", *place, "--results", str(results), "--rounds", "1",
            "--network", f"config/networks/{network}.yaml", "--without-kaldi",
            "--threads", str(threads), "--batches", size[0], "--utterances", size[1],
            "--ce-steps", size[2],
        )  # fmt: skip

    small = "" if on_gpu else "_small"
    batch = ["256"] if on_gpu else ["16"]
    chunks = ["64", "--steps", "200", "--threads", "8"] if on_gpu else ["4"]
    rooms = ["--device", device, "--rooms", "1000"] if on_gpu else ["--rooms", "2"]
    lengths = [] if on_gpu else ["--utterances", "8", "--rounds", "1", "--pdfs", "200"]
    sessions = ["64", "160", "400", "1000"] if on_gpu else ["2"]
    blstm = "blstm_3x512" if on_gpu else "blstm_small"
    return [
        Part("kernels", ["-m", "latflow.cli.main", "compile-kernels"], 60),
        Part("tests", [*tests, *TESTS], 110),
        Part(
            "lfmmi_training",
            training(
                f"cnn_tdnnf_chain{small}", "--optimizer", "natural_gradient",
                "--precision", "auto", "--batches", *chunks,
            ),
            70,
            lfmmi_rows,
        ),
        Part(
            "lfmmi_denominator",
            script(
                "lfmmi_denominator", *place, "--repeats", "2", "--peer-frames", "4",
                *shape,
            ),
            30,
            denominator_rows,
        ),
        Part(
            "ce_tdnnf",
            training(f"tdnnf{small}", "--precision", "bf16", "--batches", *batch),
            *(30, ce_rows),
        ),
        Part("scores", script("network_scores", *place, *lengths), 30, score_rows),
        Part(
            "serving",
            script(
                "serving_capacity", *place, "--package", str(results / "package/chain"),
                "--audio", str(results / "corpus/test"), "--seconds", "10",
                "--sessions", *sessions,
            ),
            100,
            serving_rows,
        ),
        Part("mmi", sequence(blstm), 50, sequence_rows),
        Part("mmi_tdnnf", sequence(f"tdnnf{small}"), 50, sequence_rows),
        Part(
            "ce_blstm",
            training(blstm, "--batches", *(["64", "256"] if on_gpu else ["16"])),
            *(60, ce_rows),
        ),
        Part("rooms", script("room_responses", *rooms), 40, room_rows),
    ]  # fmt: skip


def denominator_rows(report: Any) -> Rows:
    """Seconds by kind of graph."""
    shape = f"{report['sequences']} x {report['frames']} frames"
    return [
        (f"LF-MMI denominator, {case}, {shape}, s", report[case]["seconds"], aim)
        for case, aim in (("chain", "aim 0.2"), ("any", ""))
    ]


def lfmmi_rows(report: Any) -> Rows:
    """Times real time of training by LF-MMI."""
    what = f"LF-MMI, {report['network']}, {report['precision']}"
    return [
        (f"{what}, {batch}, x real time", result["irtf_ours"], LFMMI_AIM)
        for batch, result in report["batches"].items()
    ]


def ce_rows(report: Any) -> Rows:
    """Times real time of cross-entropy, and of a bare loop."""
    what = f"CE, {report['network']}, {report['precision']}"
    rows: Rows = []
    for batch, result in report["batches"].items():
        compared = CE_AIMS.get((report["network"], batch.partition(" ")[0]), "")
        rows.append((f"{what}, {batch}, x real time", result["irtf_ours"], compared))
        rows.append((f"  a bare loop, {batch}", result["irtf_limit"], ""))
    return rows


def sequence_rows(report: Any) -> Rows:
    """Times real time of MMI by batch."""
    network = Path(report["network"]).stem
    return [
        (
            f"MMI, {network}, batch {run['batch']}, x real time",
            run["irtf"],
            MMI_AIMS.get(network, ""),
        )
        for run in report["runs"]
    ]


def score_rows(report: Any) -> Rows:
    """Times real time of scores for decoding."""
    what = f"network scores, {report['network']}"
    return [
        (
            f"{what}, {way.replace('_', ' ')}, x real time",
            report[way]["x_real_time"],
            aim,
        )
        for way, aim in (
            ("one_by_one", ""),
            ("batches", SCORES_AIM),
            ("batches_bf16", SCORES_AIM),
        )
        if way in report
    ]


def serving_rows(report: Any) -> Rows:
    """Latency of the final by sessions."""
    return [
        (f"serving, {trial['sessions']} sessions, p95 ms", trial["p95_ms"], SERVING_AIM)
        for server in report["servers"]
        for trial in server["trials"]
    ]


def room_rows(report: Any) -> Rows:
    """Milliseconds of a response."""
    rows: Rows = []
    for row in report:
        what = f"room response of {row['t60']} s"
        if "times_faster" in row:
            rows.append((f"{what}, times one core", row["times_faster"], "aim 50"))
        else:
            rows.append((f"{what}, ms", row["given_walls"]["ms"], ""))
    return rows


def missing_packages() -> list[str]:
    """Return the packages that this Python lacks."""
    return [
        package
        for module, package in PACKAGES.items()
        if importlib.util.find_spec(module) is None
    ]


def install(wheels: Path, site: Path) -> None:
    """Install what is missing from a folder, beside this Python."""
    lacking = [name for name in GIVEN if importlib.util.find_spec(name) is None]
    if lacking:
        sys.exit(f"{sys.executable} has no {', '.join(lacking)}: set GPU_PYTHON")
    sys.path.append(str(site))
    missing = missing_packages()
    if not missing:
        return
    if not wheels.is_dir():
        sys.exit(
            f"{sys.executable} lacks {', '.join(missing)}: set WHEELS to a folder with "
            "their wheels (make gpu-wheels fills it where there is a network)"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index"]
    command += ["--no-deps", "--no-compile", "--target", str(site), "--upgrade"]
    done = subprocess.run(
        [*command, "--find-links", str(wheels), *missing], check=False
    )
    if done.returncode:
        sys.exit(f"pip could not install {', '.join(missing)} from {wheels}")
    importlib.invalidate_caches()


def fetch(folder: Path, version: str) -> None:
    """Download the wheels, of the versions of the lock file."""
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = {line.partition("==")[0].lower(): line.strip() for line in lock}
    names = [pinned.get(package.lower(), package) for package in PACKAGES.values()]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", version, "--dest", str(folder)]
    command += [part for name in PLATFORMS for part in ("--platform", name)]
    subprocess.run([*command, *names], check=True)
    size = sum(path.stat().st_size for path in folder.glob("*.whl"))
    print(f"{folder}: {len(names)} wheels, {size / 2**20:.0f} MiB")


def run(part: Part, limit: float, site: Path) -> dict[str, Any]:
    """Run a part; its report, or the end of what it said."""
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), str(site)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    began = time.perf_counter()
    load = gpu_load()
    process = subprocess.Popen(
        [sys.executable, *part.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if part.rows is None else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with load:
        try:
            out, err = process.communicate(timeout=limit)
            status = "done" if process.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            status = f"not done in {limit:.0f} s"
    found: dict[str, Any] = {
        "status": status,
        "seconds": round(time.perf_counter() - began, 1),
        "gpu_busy": None if load.share is None else round(load.share, 3),
        "gpu_busy_at_most": max(load.samples, default=None),
        "command": part.command,
    }
    if status == "done" and part.rows is not None:
        try:
            return found | {"report": last_json(out)}
        except ValueError as error:  # the parts that follow are to run all the same
            found["status"] = f"failed: {error}"
    return found | {"said": ((err or "") + out).strip().splitlines()[-40:]}


def gpu_load() -> Any:
    """Return what samples the GPU's busy share twice a second."""
    if str(ROOT / "src") not in sys.path:
        sys.path.insert(0, str(ROOT / "src"))
    from latflow.gpu_load import GpuLoad

    return GpuLoad(is_asked_for=True, seconds=0.5)


def last_json(text: str) -> Any:
    """Return the object or list, in JSON, that ends a text; other words may precede it.

    Raises:
        ValueError: there is none.
    """
    decoder, text = json.JSONDecoder(), text.rstrip()
    for match in re.finditer(r"^[ \t]*(?=[\[{])", text, re.MULTILINE):
        try:
            found, end = decoder.raw_decode(text, match.end())
        except ValueError:
            continue
        if end == len(text):
            return found
    raise ValueError("no JSON at the end of what it printed")


def show(name: str, part: Part, found: dict[str, Any]) -> None:
    """Print the figures of a part."""
    busy = found.get("gpu_busy")
    told = "" if busy is None else f", GPU busy {busy:.0%}"
    if busy is not None:
        told += f" (at most {found['gpu_busy_at_most']:.0%})"
    print(f"{name:20} {found['status']}, {found['seconds']} s{told}", flush=True)
    if part.rows is not None and "report" in found:
        for what, value, compared in part.rows(found["report"]):
            print(f"  {what:56} {value:10.4g}  {compared}", flush=True)
    elif part.rows is None:
        print(f"  {found['said'][-1] if found['said'] else ''}", flush=True)
    else:
        for line in found["said"][-6:]:
            print(f"  {line}", flush=True)


def main() -> None:
    """Run all parts within the limit."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels")
    parser.add_argument("--site", type=Path, default=ROOT / ".gpu-site")
    parser.add_argument("--results", type=Path, default=ROOT / "results/demo")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--only", nargs="*", help="names of parts")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu.json")
    parser.add_argument("--fetch", type=Path, help="fill this folder with wheels")
    parser.add_argument("--python-version", default="3.12", help="of the wheels")
    arguments = parser.parse_args()
    if arguments.fetch:
        fetch(arguments.fetch, arguments.python_version)
        return
    end = time.monotonic() + 60 * arguments.minutes - RESERVE
    install(arguments.wheels, arguments.site)
    import torch

    has_gpu = torch.cuda.is_available()
    if arguments.device == "cuda" and not has_gpu:
        sys.exit("torch finds no GPU here")
    device = "cuda" if has_gpu and arguments.device != "cpu" else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: small sizes"
    print(f"{device} ({name}), torch {torch.__version__}", flush=True)
    report: dict[str, Any] = {
        "device": device,
        "name": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "parts": {},
    }
    cores = len(os.sched_getaffinity(0))
    for part in parts(device, arguments.results.absolute(), max(1, min(16, cores))):
        if arguments.only and part.name not in arguments.only:
            continue
        left = end - time.monotonic()
        found: dict[str, Any] = {"status": "not reached", "seconds": 0.0, "said": []}
        needed = NEEDED.get(part.name)
        if needed and not (arguments.results / needed).is_dir():
            found["said"] = [f"no {needed} in {arguments.results}: set RESULTS"]
        elif left > RESERVE:
            found = run(part, min(part.limit, left), arguments.site)
        report["parts"][part.name] = found
        show(part.name, part, found)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"report: {arguments.out}")
    if any(part["status"].startswith("failed") for part in report["parts"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
