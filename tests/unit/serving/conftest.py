"""A package of a small system, made once."""

import pytest
from fixtures.serving_package import adapted_digits, make_digits
from fixtures.serving_server import CountingSession

from latflow.files import write_json
from latflow.serving import scheduler
from latflow.serving.package import Model


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The experiment, and speech to recognize."""
    return make_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def adapted(digits, tmp_path_factory):
    """The experiment with a system `sat` that adapts to speakers."""
    return adapted_digits(digits, tmp_path_factory.mktemp("adapted") / "digits")


@pytest.fixture(scope="session")
def package(digits, tmp_path_factory):
    """Package of its network; not to be changed."""
    return digits.package(tmp_path_factory.mktemp("packages") / "tdnnf")


@pytest.fixture(scope="session")
def model(package):
    """The package, loaded."""
    return Model.load(package)


@pytest.fixture(scope="session")
def unsure(digits, tmp_path_factory):
    """A model that weighs acoustics little: however sure its network is, it is not."""
    folder = tmp_path_factory.mktemp("unsure")
    scales = folder / "scales.json"
    write_json(scales, {"lmwt": 80, "wip": 0.0, "wer": 0.0})
    search = {"acoustic_scale": 0.02, "beam": 20.0, "lattice_beam": 10.0}
    return Model.load(digits.package(folder / "p", search=search, scales=scales))


@pytest.fixture(scope="module")
def counting_sessions():
    """Servers of the module have sessions whose answers are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "Session", CountingSession)
        yield
