"""Responses of rooms against pyroomacoustics and rir-generator, in the same run.

The same rooms (size, source, microphone, reverberation time) go to all. Ours is timed
twice: one response with a given reflection of the walls, as the peers compute it, and a
response whose reverberation time has been calibrated, which the peers do not do. Peers
get their walls from Sabine's formula (`rir_generator.generate(reverberation_time=)`,
`pyroomacoustics.inverse_sabine`). Times are those of one core: processor seconds.

    python benchmarks/room_responses.py [--peer-python VENV/bin/python] [--rooms 20]
    python benchmarks/room_responses.py --draws 1000 ...  # T60 alone, 0.1 to 1 s
    python benchmarks/room_responses.py --device cuda --rooms 1000  # at once, 1 core

Peers are imported by another Python where one is named, since they are no packages of
ours; without one they are left out. Responses are compared for equal reflection and no
high-pass: the energy of the difference over that of the peer's response, in all and
below 7.5 kHz (pyroomacoustics' windowed sinc is shorter and falls off there). Prints
JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

RATE = 16000
TIMES = (0.2, 0.5, 1.0)
SOME = 20  # rooms that are enough for the time of one


def draw_room(rng: np.random.Generator, wanted: float) -> dict:
    """A room that can have a reverberation time; PyKaldi2's sizes, up to 10 m."""
    while True:
        size = rng.uniform((2.5, 2.5, 2.5), (10.0, 10.0, 5.0))
        source = rng.uniform(0.5, size - 0.5)
        microphone = size * rng.uniform((0.2, 0.2, 0.4), (0.8, 0.8, 0.6))
        x, y, z = size
        shortest = 0.161 * x * y * z / (2 * (x * y + y * z + z * x))
        if shortest <= wanted and np.linalg.norm(source - microphone) > 0.3:
            return {
                "size": size.tolist(),
                "source": source.tolist(),
                "microphone": microphone.tolist(),
                "wanted": wanted,
            }


def measure(response: np.ndarray) -> float:
    """T30 of a response from its direct path on; written anew, not the package's."""
    response = response[np.abs(response).argmax() :]
    energy = np.cumsum(response[::-1] ** 2)[::-1]
    level = 10 * np.log10(energy / energy[0] + 1e-30)
    (inside,) = np.nonzero((level <= -5) & (level >= -35))
    if len(inside) < 2:
        return 0.0
    return float(-60 / np.polyfit(inside / RATE, level[inside], 1)[0])


def run_peers(rooms: list[dict], folder: Path) -> dict:
    """Seconds and reverberation times of the peers; called in their Python.

    Rooms with `beta` leave responses of that reflection behind, as PEER.NUMBER.npy.
    """
    import pyroomacoustics
    import rir_generator

    pyroomacoustics.constants.set("num_threads", 1)
    found: dict = {"rir_generator": [], "pyroomacoustics": []}
    for i, room in enumerate(rooms):
        length = int(room["wanted"] * RATE)
        place = {
            "c": 343,
            "fs": RATE,
            "r": [room["microphone"]],
            "s": room["source"],
            "L": room["size"],
            "nsample": length,
        }
        if "beta" in room:
            same = rir_generator.generate(
                **place, beta=[room["beta"]] * 6, hp_filter=False
            )
            np.save(folder / f"rir_generator.{i}.npy", same[:, 0])
            np.save(folder / f"pyroomacoustics.{i}.npy", shoe_box(room))
        started = time.process_time()
        response = rir_generator.generate(**place, reverberation_time=room["wanted"])
        spent = time.process_time() - started
        found["rir_generator"].append((spent, measure(response[:, 0])))
        started = time.process_time()
        try:
            absorption, order = pyroomacoustics.inverse_sabine(
                room["wanted"], room["size"]
            )
        except ValueError:  # Sabine's absorption would be above 1
            absorption, order = 1.0 - 1e-6, 1
        response = box_response(room, absorption, order)
        spent = time.process_time() - started
        found["pyroomacoustics"].append((spent, measure(response)))
    return found


def box_response(room: dict, absorption: float, order: int) -> np.ndarray:
    """Compute a response by pyroomacoustics; `absorption` of the energy at a wall."""
    import pyroomacoustics

    box = pyroomacoustics.ShoeBox(
        room["size"],
        fs=RATE,
        materials=pyroomacoustics.Material(absorption),
        max_order=order,
    )
    box.add_source(room["source"])
    box.add_microphone(room["microphone"])
    box.compute_rir()
    return np.asarray(box.rir[0][0])


def shoe_box(room: dict) -> np.ndarray:
    """Compute what rir-generator would for `beta`, by pyroomacoustics.

    With all images that arrive in time, no high-pass, its delay (half of the windowed
    sinc) cut off, and the amplitude 1 / (4 pi) at a metre, which it leaves out.
    """
    import pyroomacoustics

    length = int(room["wanted"] * RATE)
    order = 3 + math.ceil(
        length / RATE * 343 * np.linalg.norm(1 / np.array(room["size"]))
    )
    before = pyroomacoustics.constants.get("rir_hpf_enable")
    pyroomacoustics.constants.set(name="rir_hpf_enable", val=False)
    response = box_response(room, 1 - room["beta"] ** 2, order)
    pyroomacoustics.constants.set(name="rir_hpf_enable", val=before)
    delay = pyroomacoustics.constants.get("frac_delay_length") // 2
    return response[delay : delay + length] / (4 * math.pi)


def ask_peers(python: str, rooms: list[dict], folder: Path) -> dict:
    """Run the peers on the rooms, in their Python."""
    (folder / "rooms.json").write_text(json.dumps(rooms))
    # Own module path: the other Python has its own packages.
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [python, __file__, "--peers", str(folder)]
    subprocess.run(command, check=True, env=clean)
    return json.loads((folder / "found.json").read_text())


def run_ours(rooms: list[dict]) -> tuple[dict, list[np.ndarray]]:
    """Seconds and reverberation times of ours, and responses to compare."""
    import torch

    from latflow.simulation.rooms import calibrated_responses, room_responses

    torch.set_num_threads(1)
    found: dict = {"given_walls": [], "calibrated": []}
    responses = []
    for room in rooms:
        place = [
            torch.tensor([room[key]], dtype=torch.float64)
            for key in ("size", "source", "microphone")
        ]
        wanted = torch.tensor([room["wanted"]], dtype=torch.float64)
        started = time.process_time()
        made = calibrated_responses(*place, wanted, rate=RATE)
        spent = time.process_time() - started
        found["calibrated"].append((spent, measure(made.responses[0].double().numpy())))
        length = int(room["wanted"] * RATE)
        room["beta"] = float(made.reflection[0])
        started = time.process_time()
        one = room_responses(
            *place, made.reflection, rate=RATE, num_samples=length, high_pass=False
        )
        found["given_walls"].append((time.process_time() - started, 0.0))
        responses.append(one[0].double().numpy())
    return found, responses


def compare(python: str, number: int) -> list[dict]:
    """Time all on the same rooms, for each reverberation time."""
    rng = np.random.default_rng(1)
    rows = []
    for wanted in TIMES:
        run_ours([draw_room(rng, wanted)])  # constants of the filters, the kernel
        rooms = [draw_room(rng, wanted) for _ in range(number)]
        found, responses = run_ours(rooms)
        differences: dict[str, tuple[float, float]] = {}
        if python:
            with tempfile.TemporaryDirectory() as folder:
                peers = ask_peers(python, rooms, Path(folder))
                for name in peers:
                    same = [np.load(f"{folder}/{name}.{i}.npy") for i in range(number)]
                    ratios = map(difference, same, responses)
                    differences[name] = tuple(np.max(list(ratios), axis=0))
            found |= peers
        row: dict = {"t60": wanted, "rooms": number}
        for name, results in found.items():
            spent, times = np.array(results).T
            row[name] = {"ms": round(1e3 * spent.mean(), 2)}
            if name != "given_walls":
                within = np.abs(times / wanted - 1) < 0.1
                row[name]["t60_within_10_percent"] = round(within.mean(), 3)
        for name, (whole, low) in differences.items():
            row[name]["largest_difference_db"] = round(whole, 1)
            row[name]["largest_difference_below_7500_hz_db"] = round(low, 1)
        rows.append(row)
    return rows


def difference(expected: np.ndarray, found: np.ndarray) -> tuple[float, float]:
    """Return the energy of the difference, dB, in all and below 7.5 kHz."""
    spectrum = np.abs(np.fft.rfft(expected)) ** 2
    error = np.abs(np.fft.rfft(expected - found)) ** 2
    low = slice(int(7500 / (RATE / 2) * len(spectrum)))
    ratios = error.sum() / spectrum.sum(), error[low].sum() / spectrum[low].sum()
    return float(10 * np.log10(ratios[0])), float(10 * np.log10(ratios[1]))


def times_of_draws(python: str, number: int) -> dict:
    """Share of draws from 0.1 to 1 s whose response has the wanted time."""
    rng = np.random.default_rng(2)
    rooms = [draw_room(rng, float(t)) for t in rng.uniform(0.1, 1.0, number)]
    wanted = np.array([room["wanted"] for room in rooms])
    found, _ = run_ours([dict(room) for room in rooms])
    del found["given_walls"]
    if python:
        with tempfile.TemporaryDirectory() as folder:
            found |= ask_peers(python, rooms, Path(folder))
    row: dict = {"draws": number}
    for name, results in found.items():
        spent, times = np.array(results).T
        error = np.abs(times / wanted - 1)
        row[name] = {
            "ms": round(1e3 * float(spent.mean()), 1),
            "t60_within_10_percent": round(float(np.mean(error < 0.1)), 4),
            "median_error": round(float(np.median(error)), 3),
            "largest_error": round(float(error.max()), 3),
        }
    return row


def compare_device(device: str, number: int) -> list[dict]:
    """Time rooms with given walls on a device, at once and one by one, and on a core.

    One by one, and on the core, are some of the rooms.
    """
    import torch

    from latflow.simulation.rooms import room_responses

    torch.set_num_threads(1)
    rng = np.random.default_rng(3)
    some = min(number, SOME)
    rows = []
    for wanted in TIMES:
        rooms = [draw_room(rng, wanted) for _ in range(number)]
        given = [
            torch.tensor([room[key] for room in rooms], dtype=torch.float64)
            for key in ("size", "source", "microphone")
        ]
        given.append(torch.full((number,), 0.9, dtype=torch.float64))
        options = {"rate": RATE, "num_samples": int(wanted * RATE)}

        def timed(
            place: str, given: list, options: dict, at_once: int
        ) -> tuple[float, np.ndarray]:
            there = list(zip(*(x.to(place).split(at_once) for x in given), strict=True))
            seconds = []
            for _ in range(3):  # the first makes constants of filters
                started = time.perf_counter()
                found = torch.cat([room_responses(*x, **options).cpu() for x in there])
                seconds.append(time.perf_counter() - started)
            return min(seconds) / len(found), found.double().numpy()

        few = [part[:some] for part in given]
        core, expected = timed("cpu", few, options, 1)
        alone, _ = timed(device, few, options, 1)
        together, found = timed(device, given, options, number)
        error = found[:some] - expected
        power = np.square(error).sum() / np.square(expected).sum()
        rows.append(
            {
                "t60": wanted,
                "rooms": number,
                "ms_of_a_core": round(1e3 * core, 3),
                "ms_one_by_one": round(1e3 * alone, 3),
                "ms": round(1e3 * together, 4),
                "times_faster": round(core / together, 1),
                "difference_db": round(float(10 * np.log10(power + 1e-30)), 1),
                "difference_to_peak": float(
                    f"{np.abs(error).max() / expected.max():.1e}"
                ),
            }
        )
    return rows


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer-python", default="", help="has both peers installed")
    parser.add_argument("--rooms", type=int, default=20, help="for each time")
    parser.add_argument("--draws", type=int, default=0, help="of times alone")
    parser.add_argument("--peers", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cpu", help="against one core, no peers")
    given = parser.parse_args()
    if given.device != "cpu":
        print(json.dumps(compare_device(given.device, given.rooms), indent=1))
    elif given.peers:
        folder = Path(given.peers)
        found = run_peers(json.loads((folder / "rooms.json").read_text()), folder)
        (folder / "found.json").write_text(json.dumps(found))
    elif given.draws:
        print(json.dumps(times_of_draws(given.peer_python, given.draws), indent=1))
    else:
        print(json.dumps(compare(given.peer_python, given.rooms), indent=1))


if __name__ == "__main__":
    main()
