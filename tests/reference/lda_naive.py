"""Slow, obvious linear discriminant analysis, in plain loops."""

import numpy as np


def covariances(frames, classes):
    """Covariance (inside the classes, of their means) of frames with class >= 0."""
    frames = frames[classes >= 0].astype(np.float64)
    classes = classes[classes >= 0]
    mean = frames.mean(axis=0)
    dim = frames.shape[1]
    within, between = np.zeros((dim, dim)), np.zeros((dim, dim))
    for c in sorted(set(classes.tolist())):
        mine = frames[classes == c]
        centre = mine.mean(axis=0)
        between += len(mine) * np.outer(centre - mean, centre - mean)
        for x in mine:
            within += np.outer(x - centre, x - centre)
    return within / len(frames), between / len(frames)


def ratio(direction, within, between):
    """Variance of the class means over that inside the classes, in one direction."""
    return (direction @ between @ direction) / (direction @ within @ direction)
