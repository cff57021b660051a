"""The least wrong path by trying every path, and every alignment of its words."""

from reference.edit_distance import least_cost
from reference.lattice_paths import enumerate_paths


def least_errors(lattice, reference, ignore=()):
    """(least number of errors, least cost of a path with as few) of a raw lattice."""
    wanted = [word for word in reference if word not in ignore]
    found = []
    for path in enumerate_paths(lattice):
        if path.cost() < float("inf"):
            words = [word for word in path.words if word not in ignore]
            errors = least_cost(wanted, words, substitution=1, gap=1)
            found.append((errors, path.cost()))
    return min(found)
