"""All that is only true on a GPU, within a time limit and without a network.

Runs the tests marked `gpu`, then the benchmarks that have a device, each with a limit
of its own within that of the whole; writes one JSON of their reports and prints a
table. What was not reached, or failed, is said. Without a GPU it says so, and runs the
benchmarks on the processor at small sizes (tests marked `gpu` skip).

Packages that this Python lacks are installed from a folder of wheels, beside and not
into it; torch, Numba, NumPy and SciPy must be there.

    python benchmarks/gpu.py --wheels wheels --results results/demo   # make gpu
    python benchmarks/gpu.py --fetch wheels --python-version 3.12     # make gpu-wheels

Results are those of a recipe after `align` (`make demo`): training on lattices needs
its language, GMMs, alignments and frames.
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
    "yaml": "PyYAML",
}
GIVEN = ("torch", "numba", "numpy", "scipy")
TESTS = ("tests/gpu", "tests/unit/training/test_training_data_live.py")
PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
MINUTES = 8.0
RESERVE = 5.0  # seconds to write the report in
PYKALDI2_CE, PYKALDI2_MMI = "PyKaldi2, 1 V100: 190", "PyKaldi2, V100s: 16.7, 50.4, 176"

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
    network = "blstm_3x512" if on_gpu else "blstm_small"
    tests = ["-m", "pytest", "-m", "gpu", "-q", "-W", "default", "--timeout", "120"]
    shape = [] if on_gpu else ["--sequences", "16", "--frames", "30"]
    ce = ["--device", device, "--network", network]
    ce += ["--batches", "64" if on_gpu else "16", "--steps", "60" if on_gpu else "2"]
    ce += ["--rounds", "2" if on_gpu else "1"]
    sequence = ["--device", device, "--results", str(results), "--rounds", "1"]
    sequence += ["--network", f"config/networks/{network}.yaml", "--without-kaldi"]
    sequence += ["--threads", str(threads)]
    sequence += ["--batches", *(["4", "16", "64"] if on_gpu else ["4"])]
    sequence += ["--utterances", "128" if on_gpu else "8"]
    sequence += ["--ce-steps", "60" if on_gpu else "4"]
    rooms = ["--device", device, "--rooms", "50"] if on_gpu else ["--rooms", "2"]

    def script(name: str, *arguments: str) -> list[str]:
        return [f"benchmarks/{name}.py", *arguments]

    return [
        Part("tests", [*tests, *TESTS], 150),
        Part(
            "lfmmi_denominator",
            script(
                "lfmmi_denominator", "--device", device, "--repeats", "2",
                "--peer-frames", "4", *shape,
            ),
            50,
            denominator_rows,
        ),
        Part("ce_float32", script("network_training", *ce), 65, ce_rows),
        Part(
            "ce_bf16",
            script("network_training", *ce, "--precision", "bf16"),
            *(65, ce_rows),
        ),
        Part("mmi", script("sequence_training", *sequence), 110, sequence_rows),
        Part("rooms", script("room_responses", *rooms), 35, room_rows),
    ]  # fmt: skip


def denominator_rows(report: Any) -> Rows:
    """Seconds by kind of graph."""
    shape = f"{report['sequences']} x {report['frames']} frames"
    return [
        (f"LF-MMI denominator, {case}, {shape}, s", report[case]["seconds"], aim)
        for case, aim in (("chain", "aim on a GPU: 0.2"), ("any", ""))
    ]


def ce_rows(report: Any) -> Rows:
    """Inverse real-time factor of cross-entropy."""
    what = f"CE iRTF, {report['network']}, {report['precision']}"
    compared = PYKALDI2_CE if report["network"] == "blstm_3x512" else ""
    return [
        (f"{what}, {batch}", result["irtf_ours"], compared)
        for batch, result in report["batches"].items()
    ]


def sequence_rows(report: Any) -> Rows:
    """Inverse real-time factor of MMI by batch."""
    what = f"MMI iRTF, {Path(report['network']).stem}"
    compared = PYKALDI2_MMI if "blstm_3x512" in report["network"] else ""
    return [
        (f"{what}, batch {run['batch']}", run["irtf"], compared)
        for run in report["runs"]
    ]


def room_rows(report: Any) -> Rows:
    """Milliseconds of a response."""
    rows: Rows = []
    for row in report:
        what = f"room response of {row['t60']} s"
        if "times_faster" in row:
            told = "aim on a GPU: 100"
            rows.append((f"{what}, times one core", row["times_faster"], told))
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
    process = subprocess.Popen(
        [sys.executable, *part.command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if part.rows is None else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
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
        "command": part.command,
    }
    if status == "done" and part.rows is not None:
        try:
            return found | {"report": last_json(out)}
        except ValueError as error:  # the parts that follow are to run all the same
            found["status"] = f"failed: {error}"
    return found | {"said": ((err or "") + out).strip().splitlines()[-40:]}


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
    print(f"{name:20} {found['status']}, {found['seconds']} s", flush=True)
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
        if part.name == "mmi" and not (arguments.results / "gmm").is_dir():
            found["said"] = [f"no results in {arguments.results}: set RESULTS"]
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
