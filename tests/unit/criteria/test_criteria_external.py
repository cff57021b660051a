"""Criteria of users' own: classes named by path, and programs spoken to over pipes."""

import json
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from latflow.criteria import selftest
from latflow.criteria.criterion import Utterance
from latflow.criteria.external import External
from latflow.criteria.options import (
    CriterionOptions,
    CustomOptions,
    ExternalOptions,
    MmiOptions,
)
from latflow.criteria.registry import make_criterion
from latflow.errors import UserError
from latflow.options import read_options

MODEL, SILENCE = selftest._model(), (1,)
TASKS = [selftest.make_task(seed) for seed in range(4)]

#: A program that answers as it should; `{at}` is run where it is asked for a value.
PROGRAM = """
import sys
import numpy as np
from latflow.criteria.external import read_message, write_message
source, sink = sys.stdin.buffer, sys.stdout.buffer
read_message(source)
write_message(sink, "ready", {{"protocol": {protocol}, "name": "mine",
    "statistics": ["frames"]}}, {{}})
while True:
    header, arrays = read_message(source)
    x = arrays["log_likes"]
    objective, gradient = np.array([x.sum(dtype=np.float64)]), np.ones_like(x)
    statistics = np.array([float(len(x))])
    {at}
    write_message(sink, "value", {{}}, {{"objective": objective,
        "statistics": statistics, "gradient": gradient}})
"""


def program(at="", protocol=1):
    code = PROGRAM.format(at=at, protocol=protocol)
    return ExternalOptions(command=(sys.executable, "-c", code))


@pytest.fixture
def start():
    """Starts criteria that are ended at the end."""
    started = []

    def start(options):
        started.append(make_criterion(options, MODEL, SILENCE, seed=3))
        return started[-1]

    yield start
    for criterion in started:
        criterion.close()


def evaluate(criterion, task, dtype=np.float32):
    scores = task.log_likes.numpy().astype(dtype)
    gradient = np.zeros_like(scores)
    teacher = task.teacher.numpy().astype(dtype)
    utterance = Utterance(scores, task.lattice, task.alignment, task.words, teacher)
    return criterion.evaluate(utterance, gradient), gradient


def assert_same(one, other):
    assert other[0] == one[0]
    assert other[1].dtype == one[1].dtype
    np.testing.assert_array_equal(other[1], one[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mmi", '{"boost": 0.3, "absent_numerator": "add"}'),
        ("phone_mpe", "{}"),
        ("mwe", '{"draw": "random", "num_paths": 4}'),
        ("teacher", '{"teacher": "any"}'),
    ],
)
def test_a_process_gives_the_same_bits(start, kind, options):
    command = (sys.executable, "-m", "latflow.criteria.server", kind, options)
    there = start(ExternalOptions(command=command))
    own = {"type": kind, **json.loads(options)}
    here = start(read_options(CriterionOptions, own))
    assert (there.name, there.statistics) == (here.name, here.statistics)
    for task in TASKS:
        for dtype in (np.float32, np.float64):
            assert_same(evaluate(here, task, dtype), evaluate(there, task, dtype))


@pytest.mark.slow
def test_threads_have_processes_of_their_own(start):
    criterion = start(program("import time; time.sleep(0.3)"))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda task: evaluate(criterion, task), TASKS[:3]))
    for task, (value, gradient) in zip(TASKS, found, strict=False):
        expected = task.log_likes.numpy().astype(np.float32).sum(dtype=np.float64)
        assert value.objective == expected
        assert value.statistics == {"frames": float(len(task.log_likes))}
        assert (gradient == 1.0).all()
    assert len(criterion._idle) == 3
    processes = [process._process for process in criterion._idle]
    criterion.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("sys.exit(3)", r"it ended without an answer \(exit status 3\)"),
        ("sink.write(b'x' * 100); sink.flush()", "on its output is not a message"),
        ("sink.write(b'LFC1' + b'\\xff' * 9); sink.flush()", "a header of"),
        ("sink.write(b'LFC1\\x02\\0\\0\\0[]'); sink.flush()", "cannot be read"),
        ("gradient = gradient[1:]", "where .* is due"),
        ("gradient = gradient.astype(np.float64)", "where .* is due"),
        ("statistics = statistics[:0]", "where .* is due"),
        ("write_message(sink, 'error', {'text': 'no way'}, {})", "no way"),
        ("write_message(sink, 'ready', {}, {})", "'ready', where 'value' is due"),
    ],
)
def test_what_goes_wrong_in_a_process_is_one_line(start, at, message):
    criterion = start(program(at))
    with pytest.raises(UserError, match=message) as error:
        evaluate(criterion, TASKS[0])
    assert "\n" not in str(error.value)
    assert not criterion._idle


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("/no/such/program",), "does not start: No such file"),
        (("true",), "ended without an answer"),
        (("echo", "hello, world"), "is not a message"),
        (program(protocol=7).command, "speaks protocol 7, latflow 1"),
    ],
)
def test_a_program_that_is_none_is_refused(command, message):
    with pytest.raises(UserError, match=message):
        make_criterion(ExternalOptions(command=command), MODEL, SILENCE)


def test_a_process_that_hangs_is_ended():
    options = ExternalOptions(command=("sleep", "100"), timeout=1)
    with pytest.raises(UserError, match="no answer within 1 s"):
        External(options, MODEL, SILENCE)


CUSTOM = """
    from latflow.criteria.mmi import Mmi
    from latflow.criteria.options import MmiOptions

    class Boosted(Mmi):
        name = "boosted"

        def __init__(self, options, model, silence_phones=(), *, seed=0):
            options = MmiOptions(**options)
            super().__init__(options, model, silence_phones, seed=seed)

    class Other:
        pass
"""


@pytest.fixture
def custom(tmp_path, monkeypatch):
    (tmp_path / "my_criteria.py").write_text(textwrap.dedent(CUSTOM))
    (tmp_path / "wrong.py").write_text("class")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_class_is_found_by_module_and_by_file(start, custom):
    for where in ("my_criteria", custom / "my_criteria.py"):
        given = {"path": f"{where}:Boosted", "options": {"boost": 0.3}}
        mine = start(read_options(CriterionOptions, {"type": "custom", **given}))
        assert mine.name == "boosted"
        for task in TASKS:
            ours = evaluate(start(MmiOptions(boost=0.3)), task)
            assert_same(ours, evaluate(mine, task))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:Boosted", "No module named 'no_such_module'"),
        ("my_criteria:Missing", "no attribute 'Missing'"),
        ("my_criteria:Other", "is not a LatticeCriterion"),
        ("none.py:Boosted", "No such file"),
        ("wrong:Boosted", "invalid syntax"),
    ],
)
@pytest.mark.usefixtures("custom")
def test_a_class_that_is_none_is_refused(path, message):
    with pytest.raises(UserError, match=message):
        make_criterion(CustomOptions(path=path), MODEL, SILENCE)
