"""The image method as it is written: one windowed sinc for each image, in a loop."""

import itertools
import math

import numpy as np


def room_response(
    size, source, microphone, reflection, *, rate, num_samples, advance=0
):
    """Response of a room, float64 [L]; arguments as those of `room_responses`."""
    speed, width = 343.0, round(0.004 * rate)
    reach = [math.ceil((num_samples / rate * speed + advance) / (2 * x)) for x in size]
    response = np.zeros(num_samples)
    samples = np.arange(num_samples)
    for n in itertools.product(*(range(-r, r + 1) for r in reach)):
        for p in itertools.product((0, 1), repeat=3):
            image = [2 * n[k] * size[k] + (1 - 2 * p[k]) * source[k] for k in range(3)]
            distance = math.dist(image, microphone)
            count = sum(abs(n[k] - p[k]) + abs(n[k]) for k in range(3))
            time = samples - (distance - advance) * rate / speed
            if time[0] < -num_samples:
                continue
            near = np.abs(time) < width
            window = 0.5 + 0.5 * np.cos(np.pi * time[near] / width)
            impulse = np.sinc(time[near]) * window
            response[near] += reflection**count * impulse / (4 * np.pi * distance)
    return response


def decay_time(response, rate):
    """T30 of a response, s: the line is fitted by numpy to Schroeder's integral."""
    energy = np.cumsum(np.asarray(response, np.float64)[::-1] ** 2)[::-1]
    level = 10 * np.log10(energy / energy[0])
    (inside,) = np.nonzero((level <= -5) & (level >= -35))
    return -60 / np.polyfit(inside / rate, level[inside], 1)[0]
