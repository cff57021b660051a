"""Findings that ask for something: each where its evidence is, and only there."""

import json
import shutil

import pytest
from fixtures.made_up_networks import CONFIG, write_networks
from fixtures.made_up_results import made_up_recipe, write_experiment, write_json

from latflow.ledger import Ledger
from latflow.report.choice import Decision, decide
from latflow.report.findings import findings
from latflow.report.inputs import Results
from latflow.workflow.recipe import Recipe


@pytest.fixture(scope="module")
def config():
    few = {"score": {"bootstrap": {"samples": 100}}, "report": {"num_examples": 0}}
    return made_up_recipe(**few, nnet=CONFIG)


@pytest.fixture(scope="module")
def made_up(config, tmp_path_factory):
    target = tmp_path_factory.mktemp("findings") / "made_up"
    write_experiment(target, config.score)
    write_networks(target, config.score)
    return target


@pytest.fixture
def folder(made_up, tmp_path):
    return shutil.copytree(made_up, tmp_path / "copy")


@pytest.fixture
def told(folder, config):
    """Findings of an experiment, as text; of its own decision unless one is given."""

    def find(decision=None):
        results = Results(folder, Recipe.resolve(config))
        chosen = decision or decide(results.rates, results.recipe.test_sets)
        return "\n".join(f"{what}: {try_}" for what, try_ in findings(results, chosen))

    return find


@pytest.mark.parametrize(
    ("dev", "test", "is_found"),
    [(10.0, 15.1, True), (10.0, 14.9, False), (0.1, 1, False)],
)
def test_a_dev_set_that_is_too_easy(told, dev, test, is_found):
    rates = {("tri1", "dev"): dev, ("tri1", "test"): test}
    found = told(Decision("tri1", "test", rates))
    assert ("make dev more like the test set" in found) == is_found


@pytest.mark.parametrize(("oracle", "is_found"), [(12.0, True), (8.0, False)])
def test_lattices_without_the_right_words_of_any_system(folder, told, oracle, is_found):
    path = folder / "score/mono/test/lattices.json"
    known = json.loads(path.read_text())
    write_json(path, {**known, "best_wer": 20.0, "oracle_wer": oracle})
    assert ("mono: even the least wrong paths" in told()) == is_found


@pytest.mark.parametrize(("skipped", "is_found"), [(5, True), (0, False)])
def test_training_utterances_that_were_not_aligned(folder, told, skipped, is_found):
    ledger = Ledger("align_frames")
    for i in range(skipped):
        ledger.record(f"u{i}", "no path within the beam")
    for i in range(20):
        ledger.record(f"v{i}", "aligned with a wider beam", action="retried")
    (folder / "align/mono/train").mkdir(parents=True, exist_ok=True)
    ledger.write(folder / "align/mono/train/ledger.jsonl")
    wanted = f"mono could not align {skipped} of 40 training utterances"
    assert (wanted in told()) == is_found


@pytest.mark.parametrize(("last", "is_found"), [(1.2, True), (1.0, False)])
def test_networks_whose_dev_loss_rose_again(folder, told, last, is_found):
    path = folder / "nnet/wide/log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for line, loss in zip(epochs, (1.5, 1.0, last), strict=True):
        line["dev"]["loss"] = loss
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = "dev loss of wide was least after epoch 2 of 3"
    assert (wanted in told()) == is_found


def test_scales_at_the_edge_of_the_sweep_of_any_system(folder, told):
    assert "lies at the edge of the sweep" not in told()
    chosen = {"lmwt": 20, "wip": -0.5, "at_edge": ["lmwt", "wip"]}
    write_json(folder / "tune/mono/scales.json", chosen)
    assert "the best language model weight of mono, 20, lies at the edge" in told()
    assert "the best word insertion penalty of mono, -0.5, lies at" in told()
