import itertools
import json
import random
import re

import numpy as np
import pandas as pd
import pytest
from fixtures.made_up_results import (
    SETS,
    made_up_recipe,
    write_corpus,
    write_json,
    write_rates,
    write_scores,
)

from latflow.report import examples, figures
from latflow.report.choice import chosen_on_dev, decide, rates_of
from latflow.report.cost_sections import speed_section
from latflow.report.data import data_section, language_section, packages_section
from latflow.report.decision import decision_section, headline
from latflow.report.examples import Tier
from latflow.report.figures import canvas, render, series_colour
from latflow.report.inputs import Results
from latflow.report.page import Details, Note, Table
from latflow.report.scores import rates_section
from latflow.report.served import serving_section
from latflow.report.training import _unknown_sequences
from latflow.scoring.options import ScoreOptions
from latflow.workflow.recipe import Recipe


def test_drawings_take_their_colours_from_the_page_and_repeat():
    def draw():
        with canvas(4, 2) as figure:
            axes = figure.subplots()
            axes.plot([0, 1], [0, 1], color=series_colour(0))
            axes.set_xlabel("time (s)")
            return render(figure, 'a "quoted" <label>')

    svg = draw()
    assert svg == draw()
    assert svg.startswith("<svg role=")
    assert "aria-label=\"a 'quoted' label>\"" in svg
    assert "var(--c0)" in svg
    assert "time (s)</text>" in svg
    assert not re.search(r"#0[0-9a]0[0-9b]0\d|xmlns|<style|http", svg)


def test_a_system_without_a_score_on_a_set_has_no_bar_there():
    one, other = (9.0, 8.0, 10.0), (7.0, 6.0, 8.0)
    both = {"mono": one, "tri": other}
    alike = figures.error_rates({"dev": both, "test": both})
    assert [alike.count(f">{name}<") for name in both] == [1, 1]  # named once
    svg = figures.error_rates({"dev": both, "test": {"tri": other}})
    assert [svg.count(f">{name}<") for name in both] == [1, 2]
    assert svg.count("9.00<") == 1


@pytest.mark.parametrize(
    "svg",
    [
        figures.error_rates({"test": {"mono": (0.0, 0.0, 0.0)}}),
        figures.error_rates({f"set{i}": {"mono": (9.0, 8.0, 10.0)} for i in range(5)}),
        figures.training_curves(
            {
                "mono": pd.DataFrame(
                    [("1", "-90.0", "10", "realign")],
                    columns=["iter", "log_like_per_frame", "num_gaussians", "phase"],
                )
            }
        ),
        figures.scale_sweep(
            {"mono": pd.DataFrame([(7.0, 0.0, 10.0)], columns=["lmwt", "wip", "wer"])},
            {},
        ),
        figures.speaker_rates({f"s{i:02d}": float(i) for i in range(60)}, 20.0),
        figures.phone_durations({"SIL": (3, 10, 80)}, shift_ms=10),
        figures.rule_costs({"train": (0.0, 0.0)}),
    ],
    ids=["rates", "sets", "curves", "sweep", "speakers", "phones", "costs"],
)
def test_figures_hold_at_their_edges(svg):
    assert svg.rstrip().endswith("</svg>")
    assert "nan" not in svg


def test_a_legend_that_takes_seconds_on_a_busy_machine_is_drawn(monkeypatch):
    with canvas(4, 2) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], label="mono")
        axes.legend()
        clock = itertools.count(step=2)  # matplotlib warns after one second
        monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
        assert "mono</text>" in render(figure, "legend")


def test_small_numbers_keep_their_digits_on_axes():
    points = pd.DataFrame(
        [(5, 0.00123, 9.0, 3.0), (7, 0.00187, 8.0, 4.0)],
        columns=["beam", "rtf", "wer", "depth"],
    )
    assert re.search(r">0\.001\d+</text>", figures.beam_sweep({"tri1": points}))


def test_loudest_frequency_is_where_the_tone_is():
    rate = 8000
    tone = np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)
    spectrum = examples.log_spectrum(tone, rate)
    num_bins, num_frames = spectrum.shape
    assert (num_bins, num_frames) == (101, 101)
    assert spectrum[:, 50].argmax() == 25  # 40 Hz a bin
    assert spectrum.max() == 0
    assert spectrum.min() == -examples.RANGE_DB


def test_shortest_sound_and_no_labels_can_be_drawn():
    svg = examples.draw(np.zeros(1), 8000, [])
    assert svg.rstrip().endswith("</svg>")
    with_words = examples.draw(
        np.zeros(4000), 8000, [Tier("words", [(0.0, 0.5, "ONE")])]
    )
    assert ">ONE</text>" in with_words


def test_labels_are_text_not_formulas():
    spans = [(0.0, 0.5, "$5 & <UNK> $x$"), (0.5, 1.0, "日本")]
    svg = examples.draw(np.ones(8000), 8000, [Tier("words", spans)])
    assert ">$5 &amp; &lt;UNK&gt; $x$</text>" in svg
    assert ">日本</text>" in svg


def test_missing_manifests_have_no_size(tmp_path):
    assert not Results(tmp_path, Recipe.resolve(made_up_recipe())).split_sizes


def test_neural_language_models_are_told_of_where_the_recipe_has_some(tmp_path):
    def blocks(**lm):
        decode = {"rescore": {name: {"lm": options} for name, options in lm.items()}}
        recipe = Recipe.resolve(made_up_recipe(decode=decode))
        return language_section(Results(tmp_path, recipe)).blocks

    without = len(blocks(big={"type": "text", "path": "text"}))
    told = blocks(lstm={"type": "neural"})
    assert len(told) == without + 1
    assert told[1].is_missing
    perplexity = {"neural": 130.44, "ngram": 83.8, "mixture": 78.64}
    found = {"weight": 0.2804, "perplexity": perplexity}
    write_json(tmp_path / "lm/lstm.mixture.json", found)
    _, note, table, *_ = blocks(lstm={"type": "neural"})
    assert "mixture" in note.text
    (row,) = table.rows
    assert list(row.values()) == ["lstm", "0.280", "130.4", "83.8", "78.6"]


def test_packages_are_told_of_where_the_recipe_asks_for_some(tmp_path):
    def section(**package):
        return packages_section(
            Results(tmp_path, Recipe.resolve(made_up_recipe(**package)))
        )

    assert section() is None
    asked = {"package": {"systems": ["mono", "tri1"], "offline": True}}
    assert section(**asked).blocks[0].is_missing
    why = "cmvn of type speaker normalizes features with frames to come"
    told = {"why_not_streaming": why, "sample_rate": 8000, "lmwt": 9.0, "wip": 0.5}
    write_json(tmp_path / "package/tri1/package.json", told)
    (table,) = section(**asked).blocks
    (row,) = table.rows
    assert (row["system"], row["streams"], row["LMWT"]) == ("tri1", why, "9")
    assert row["confidences"] == ""
    aligns = {**told, "lmwt": None, "wip": None}  # a package that does no more
    write_json(tmp_path / "package/tri1/package.json", aligns)
    (row,) = section(**asked).blocks[0].rows
    assert (row["LMWT"], row["WIP"]) == ("", "")
    folder = tmp_path / "served/tri1/other"
    folder.mkdir(parents=True)
    # Two words of the posterior 0.9, one of them right: 40 points too sure.
    (folder / "hyp.ctm").write_text("u 1 0 1 a 0.9\nu 1 1 1 b 0.9\n")
    titles = "utterance speaker words ins del sub errors wer reference hypothesis"
    values = ["u", "s", "2", "0", "0", "1", "1", "50", "a c", "a b"]
    lines = ["\t".join(line) for line in (titles.split(), values)]
    (folder / "per_utterance.tsv").write_text("\n".join(lines) + "\n")
    write_json(
        tmp_path / "package/tri1/package.json",
        {**told, "confidences": [[0.5, 0.5], [0.9, 0.5]]},
    )
    (table,) = section(**asked).blocks
    assert table.rows[0]["confidences"] == "other 40.0 -> 0.0"


def test_sets_with_pauses_are_told_to_be_decoded_as_a_whole(tmp_path):
    def told(**sections):
        recipe = made_up_recipe(**sections)
        blocks = rates_section(Results(tmp_path, Recipe.resolve(recipe))).blocks
        return " ".join(str(block.text) for block in blocks if isinstance(block, Note))

    generator = random.Random(1)
    for name in SETS:
        write_corpus(tmp_path, name, 20, generator)
        write_scores(tmp_path, "tri1", name, 0.1, ScoreOptions())
    write_rates(tmp_path, ["tri1"])
    assert "with pauses" not in told()
    corpus = made_up_recipe().corpus.values()
    paused = {"long": {"of": "test"}, "more": {"of": "train"}}
    assert "pauses between sentences (long) are" in told(
        corpus={**corpus, "paused": paused}
    )


def test_it_is_told_which_systems_can_be_served_and_how_well(tmp_path):
    streams = {
        "plain": {"type": "fbank", "cmvn": {"type": "none"}},
        "whole": {"type": "fbank", "cmvn": {"type": "speaker"}},
    }
    network = {"type": "ce", "network": "n.yaml", "alignments": "tri1"}
    networks = {
        "live": {**network, "features": "plain", "data": {"normalization": "global"}},
        "late": {**network, "features": "whole"},
        "both": {**network, "features": "tri1"},
    }
    recipe = made_up_recipe(
        nnet={"features": streams, "systems": networks}, package={"systems": ["live"]}
    )
    results = Results(tmp_path, Recipe.resolve(recipe))
    (table,) = serving_section(results).blocks
    told = {row["system"]: row["can be served"] for row in table.rows}
    assert told["live"] == "yes"
    why = "cmvn of type speaker normalizes features with frames to come"
    assert told["late"] == f"whole files only: late cannot be streamed: {why}"
    assert told["both"] == "no: both reads features of the GMM system tri1"
    bounds = {"low": 4.0, "high": 9.0}
    served = {"wer": 6.25, "ins": 1, "del": 2, "sub": 3, "confidence_interval": bounds}
    write_json(tmp_path / f"served/live/{SETS[-1]}/wer.json", served)
    write_json(tmp_path / f"score/live/{SETS[-1]}/wer.json", {"wer": 25.0})
    *_, rates = serving_section(results).blocks
    (row,) = rates.rows
    assert list(row.values()) == [
        *("live", SETS[-1], "6.25", "4.00 – 9.00", "1", "2", "3", "25.00")
    ]


def test_dev_chooses_the_earlier_of_equal_systems_and_those_without_dev_come_last():
    rates = {("a", "dev"): 3.0, ("b", "dev"): 3.0, ("c", "dev"): 4.0}
    rates |= {(system, "test"): 1.0 for system in "abcd"} | {("e", "other"): 1.0}
    assert chosen_on_dev(rates, "test") == "a"
    assert chosen_on_dev({("d", "test"): 2.0, ("e", "test"): 1.0}, "test") == "d"
    assert chosen_on_dev(rates, "nowhere") is None
    decision = decide(rates, ["test"])
    assert (decision.system, decision.ties) == ("a", ["b"])


def test_rates_are_those_of_the_counts():
    columns = {"system": ["a", "b"], "set": ["dev", "dev"], "wer": ["0.34", "nan"]}
    counts = {"ins": ["0", "0"], "del": ["1", "0"], "sub": ["0", "0"]}
    table = pd.DataFrame({**columns, **counts, "words": ["297", "0"]})
    assert rates_of(table) == {("a", "dev"): pytest.approx(100 / 297)}


def test_networks_that_lattices_made_worse_are_findings(tmp_path):
    ce = {"type": "ce", "network": "n.yaml", "alignments": "tri1"}
    mmi = {"type": "sequence", "parent": "net", "criterion": {"type": "mmi"}}
    rates = {"net": 0.1, "mmi": 0.4, "smbr": 0.11, "mpe": 0.02}
    systems = dict.fromkeys(rates, mmi) | {"net": ce}
    experiment = made_up_recipe(nnet={"systems": systems})
    generator = random.Random(1)
    for name in SETS:
        write_corpus(tmp_path, name, 40, generator)
        for system, rate in rates.items():
            write_scores(tmp_path, system, name, rate, experiment.score)
    write_rates(tmp_path, rates)
    tables = [
        block
        for block in decision_section(
            Results(tmp_path, Recipe.resolve(experiment))
        ).blocks
        if isinstance(block, Table) and "finding" in block.rows[0]
    ]
    told = {
        str(row["finding"]).split()[0]: row
        for row in tables[0].rows
        if "started from" in str(row["finding"])
    }
    assert list(told) == ["mmi", "smbr"]
    assert re.search(r"worse \(p 0\.0\d\d\)$", str(told["mmi"]["finding"]))
    assert "smaller learning rate" in str(told["mmi"]["try"])
    assert "could be chance (p " in str(told["smbr"]["finding"])
    assert "more speech in dev" in str(told["smbr"]["try"])


@pytest.mark.parametrize(
    "rates", [{"net": 0.01, "mmi": 0.976}, {"net": 0.1, "mmi": 0.11}]
)
def test_a_failed_sequence_training_is_told_at_the_top(tmp_path, rates):
    ce = {"type": "ce", "network": "n.yaml", "alignments": "tri1"}
    mmi = {"type": "sequence", "parent": "net", "criterion": {"type": "mmi"}}
    experiment = made_up_recipe(nnet={"systems": {"net": ce, "mmi": mmi}})
    generator = random.Random(1)
    for name in SETS:
        write_corpus(tmp_path, name, 40, generator)
        for system, rate in rates.items():
            write_scores(tmp_path, system, name, rate, experiment.score)
    write_rates(tmp_path, rates)
    results = Results(tmp_path, Recipe.resolve(experiment))
    dev = {system: results.decision.rates[system, "dev"] for system in rates}
    told = (
        f"The training of mmi failed: it gets {dev['mmi']:.2f} % of dev's words wrong, "
        f"and net, which it started from, {dev['net']:.2f} %."
    )
    has_failed = rates["mmi"] > 0.5
    assert headline(results).sentence.endswith(told) == has_failed
    assert decision_section(results).lead.endswith(told) == has_failed


def test_a_network_on_adapted_features_costs_the_first_pass_too(tmp_path):
    ce = {"type": "ce", "network": "n.yaml", "alignments": "tri3"}
    systems = {"plain": {**ce, "features": "tri1"}, "net": {**ce, "features": "tri3"}}
    tri1 = {"type": "deltas", "alignments": "mono"}
    gmm = {"mono": {"type": "mono"}, "tri1": tri1}
    gmm["tri3"] = {"type": "sat", "alignments": "tri1"}
    experiment = made_up_recipe(gmm={"systems": gmm}, nnet={"systems": systems})
    rates = {"tri3": 0.3, "plain": 0.2, "net": 0.1}
    factors = {"tri3": 0.05, "plain": 0.01, "net": 0.02}
    generator = random.Random(1)
    for name in SETS:
        write_corpus(tmp_path, name, 4, generator)
        for system, rate in rates.items():
            write_scores(tmp_path, system, name, rate, experiment.score)
            told = {"real_time_factor_per_core": {"both": factors[system]}}
            told |= {"audio_seconds": 100.0}
            if system == "tri3":
                told["other_cpu_seconds"] = {"adapt": 3.0}
            write_json(tmp_path / f"decode/{system}/{name}/decode.json", told)
    write_rates(tmp_path, rates)
    table, *_ = decision_section(Results(tmp_path, Recipe.resolve(experiment))).blocks
    assert isinstance(table, Table)
    found = {
        r["system"]: (r["passes"], r["real-time factor a core"]) for r in table.rows
    }
    assert found == {
        "tri3": ("2", "0.080"),
        "plain": ("1", "0.010"),
        "net": ("2", "0.100"),
    }


def test_generated_pronunciations_are_listed(tmp_path):
    recipe = made_up_recipe(lang={"g2p": {"num_pronunciations": 1}})
    results = Results(tmp_path, Recipe.resolve(recipe))
    *_, told = data_section(results).blocks
    assert isinstance(told, Note)
    assert told.is_missing
    (tmp_path / "lang").mkdir()
    (tmp_path / "lang/generated.tsv").write_text(
        "word\tprobability\tphones\ttranscripts\tlm\n"
        "teh\t0.9\tT EH\t1\t0\n?\t\t\t1\t0\n"
    )
    *_, told, listed = data_section(results).blocks
    assert isinstance(told, Note)
    assert "2 words" in told.text
    assert "1 pronunciations were generated, 1 words got none" in told.text
    assert isinstance(listed, Details)
    assert "teh\t0.9\tT EH" in listed.text


def test_what_was_dropped_of_a_cleaned_set_is_told(tmp_path):
    recipe = made_up_recipe()
    recipe = recipe.replace(corpus=recipe.corpus.replace(cleaned={"good": {}}))
    results = Results(tmp_path, Recipe.resolve(recipe))
    assert results.recipe.training_sets == ["train", "good"]
    assert data_section(results).blocks[-1].is_missing
    told = {
        "utterances": 4, "seconds": 7200.0, "whole_utterances": 2, "cut_utterances": 1,
        "parts": 4, "kept_seconds": 5400.0,
        "dropped_seconds": {"words differ": 1440.0, "silence": 360.0},
    }  # fmt: skip
    write_json(tmp_path / "corpus/good/cleaned.json", told)
    (row,) = data_section(results).blocks[-1].rows
    assert (row["kept (h)"], row["of (h)"], row["cut"]) == ("1.500", "2.000", 1)
    assert row["words differ (h)"] == "0.400"


def test_speech_of_hours_keeps_its_digits(tmp_path):
    told = {"utterances": 2620, "audio_seconds": 19452.48, "wall_seconds": 0.12345}
    write_json(tmp_path / "decode/mono/test/decode.json", told)
    section = speed_section(Results(tmp_path, Recipe.resolve(made_up_recipe())))
    (row,) = next(block for block in section.blocks if isinstance(block, Table)).rows
    assert (row["speech (s)"], row["wall time (s)"]) == ("19452", "0.1235")


def scored(*errors):
    """Scores of utterances of ten words by their (insertions, deletions, subs)."""
    rows = [
        {"utterance": f"u{i}", "words": 10, "errors": sum(own)}
        | dict(zip(("ins", "del", "sub"), own, strict=True))
        for i, own in enumerate(errors)
    ]
    return pd.DataFrame(rows)


def test_examples_have_each_kind_of_error_that_there_is():
    scores = scored(*[(0, 0, i) for i in range(30)], (0, 2, 1), (1, 0, 0))
    chosen = examples._spread(scores, 4)
    assert len(chosen) == 4
    assert (chosen[["ins", "del", "sub"]].max() > 0).all()
    assert (chosen["errors"] == 0).any()
    assert chosen["errors"].is_monotonic_decreasing
    assert list(examples._spread(scores, 40)["utterance"][-1:]) == ["u0"]


def test_examples_are_spread_where_there_is_no_room_for_kinds():
    scores = scored((0, 0, 0), (1, 0, 0), (0, 0, 3))
    assert list(examples._spread(scores, 2)["utterance"]) == ["u2", "u0"]


def test_supervisions_without_weights_are_counted(tmp_path):
    """They are why the objective of LF-MMI may be above 0 on dev."""
    chain = {"type": "lfmmi", "network": "n.yaml", "alignments": "tri1"}
    results = Results(
        tmp_path, Recipe.resolve(made_up_recipe(nnet={"systems": {"net": chain}}))
    )
    for split, refused in (("train", 0), ("dev", 58)):
        folder = tmp_path / f"chain/net/supervisions/{split}"
        folder.mkdir(parents=True)
        text = json.dumps({"refused": refused, "num_utterances": 96})
        (folder / "meta.json").write_text(text)
    assert _unknown_sequences(results, "net", "train") == {}
    (told,) = _unknown_sequences(results, "net", "dev").items()
    assert told[0].startswith("dev utterances with phone sequences unknown")
    assert told[1] == "58 of 96"
