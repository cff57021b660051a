"""Decoding in passes that adapt to each speaker, and scoring lattices anew."""

import json

import numpy as np
import pytest
from fixtures.adapted_system import make_systems, system_options, write_frames
from fixtures.small_model import small_model

from latflow.decode.adapt import decode_adapted, rescore_acoustic, word_posteriors
from latflow.decode.joining import join_lattices
from latflow.decode.lattices import decode_lattices
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.model import GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.hclg import make_graph
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import read_matrices
from latflow.lang.directory import Lang
from latflow.lattice.best_path import best_path
from latflow.lattice.io.archives import read_lattices
from latflow.lattice.lattice import Lattice
from latflow.ledger import read_ledger
from latflow.parts import SetJob

TID_TO_PDF = small_model().pdf


@pytest.fixture(scope="module")
def root(tmp_path_factory, request):
    root = make_systems(tmp_path_factory.mktemp("adapt"), request.config.rootpath)
    write_frames(root / "other", count=18, seed=8)
    for name in ("mono", "tri3"):
        graph = root / f"{name}.fst"
        make_graph(
            root / "lang", root / "G.fst", root / name, graph, options=GraphOptions()
        )
    return root


@pytest.fixture(scope="module")
def options(request):
    return system_options(request.config.rootpath)["decode"]


def run(
    root, out, options, *,
    system="tri3", frames="other", threads=1, allowed=0.0, part=None,
):  # fmt: skip
    decode_adapted(
        SetJob(
            frames_dir=root / frames,
            model_dir=root / system,
            lang_dir=root / "lang",
            out_dir=out,
            threads=threads,
            max_skipped_fraction=allowed,
            part=part,
        ),
        graph=root / f"{system}.fst",
        options=options,
        adapt=options.adapt,
    )
    return dict(read_lattices(out / "lattices.ark"))


def num_errors(root, lattices, frames="other"):
    """Utterances whose best path is not their transcript."""
    store, lang = FrameStore.load(root / frames), Lang.load(root / "lang")
    return sum(
        best_path(lattices[utterance], acoustic_scale=0.083333).words.tolist()
        != lang.words_to_ids(store.texts[i])
        for i, utterance in enumerate(store.utt_ids)
    )


def changed(options, **adapt):
    return options.replace(adapt=options.adapt.replace(**adapt))


def test_lattices_transforms_and_what_was_done_are_written(root, options, tmp_path):
    lattices = run(root, tmp_path / "out", options)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "decode.json",
        "lattices.ark",
        "ledger.jsonl",
        "trans.ark",
    ]
    assert list(lattices) == FrameStore.load(root / "other").utt_ids
    assert num_errors(root, lattices) == 0
    summary = json.loads((tmp_path / "out/decode.json").read_text())
    assert (summary["utterances"], summary["skipped"]) == (18, 0)
    first, second = summary["adaptation"]
    assert first["num_speakers"] == second["num_speakers"] == 3
    assert first["gain_per_frame"] > second["gain_per_frame"] >= 0
    assert all(seconds > 0 for seconds in summary["other_cpu_seconds"].values())
    decode_lattices(
        SetJob(
            frames_dir=root / "other",
            model_dir=root / "mono",
            lang_dir=root / "lang",
            out_dir=tmp_path / "plain",
            threads=1,
            max_skipped_fraction=0.0,
        ),
        graph=root / "mono.fst",
        options=options,
    )
    plain = json.loads((tmp_path / "plain/decode.json").read_text())
    assert plain.keys() < summary.keys()


@pytest.mark.parametrize(
    "adapt",
    [
        {"first_beam": 0.01},
        {"first_max_active": 2},
        {"first_lattice_beam": 0.01},
        {"second_lattice_beam": 0.01},
    ],
)
def test_both_searches_have_beams_of_their_own(root, options, tmp_path, adapt):
    """Narrower ones change what the transforms are estimated from."""
    options = options.replace(min_active=0)
    run(root, tmp_path / "usual", options)
    run(root, tmp_path / "narrow", changed(options, **adapt))
    usual, narrow = (
        (tmp_path / name / "trans.ark").read_bytes() for name in ("usual", "narrow")
    )
    assert usual != narrow


def test_transforms_are_about_those_of_training(root, options, tmp_path):
    run(root, tmp_path / "out", options)
    found = dict(read_matrices(tmp_path / "out/trans.ark"))
    trained = dict(read_matrices(root / "tri3/trans.ark"))
    assert found.keys() == trained.keys()
    for speaker, matrix in found.items():
        np.testing.assert_allclose(matrix[:2, :2], trained[speaker][:2, :2], atol=0.25)


def test_acoustic_costs_are_those_of_features_after_both_transforms(
    root, options, tmp_path
):
    lattices = run(root, tmp_path / "out", options)
    system = GmmSystem.load(root / "tri3")
    transforms = SpeakerTransforms.load(tmp_path / "out/trans.ark")
    store = FrameStore.load(root / "other")
    for i in (0, 1, 2):
        lattice = lattices[store.utt_ids[i]]
        frames = system.transform(store.frames(i))
        adapted = transforms.apply(store.speakers[i], frames)
        log_likes = system.model.gmms.log_likelihoods(adapted)
        wanted = rescore_acoustic(lattice, log_likes, system.model.transitions.pdf)
        np.testing.assert_allclose(
            lattice.acoustic_cost, wanted.acoustic_cost, rtol=1e-4, atol=1e-3
        )


def test_threads_write_the_same_bytes(root, options, tmp_path):
    run(root, tmp_path / "one", options)
    run(root, tmp_path / "two", options, threads=3)
    for name in ("lattices.ark", "trans.ark", "ledger.jsonl"):
        one, two = (tmp_path / t / name for t in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_without_transforms_it_is_plain_decoding(root, options, tmp_path):
    """A system that does not adapt, and speakers with too few frames."""
    few = changed(options, min_count=1e9)
    lattices = run(root, tmp_path / "out", few, system="mono")
    decode_lattices(
        SetJob(
            frames_dir=root / "other",
            model_dir=root / "mono",
            lang_dir=root / "lang",
            out_dir=tmp_path / "plain",
            threads=1,
            max_skipped_fraction=0.0,
        ),
        graph=root / "mono.fst",
        options=options,
    )
    for utterance, plain in read_lattices(tmp_path / "plain/lattices.ark"):
        ours = lattices[utterance]
        assert abs(ours.num_arcs - plain.num_arcs) <= 0.01 * plain.num_arcs
        paths = [best_path(x, acoustic_scale=0.083333) for x in (ours, plain)]
        np.testing.assert_array_equal(paths[0].words, paths[1].words)
        assert paths[0].acoustic_cost == pytest.approx(paths[1].acoustic_cost, rel=1e-4)
    summary = json.loads((tmp_path / "out/decode.json").read_text())
    assert [a["num_unadapted"] for a in summary["adaptation"]] == [3, 3]


def test_adaptation_helps_speakers_that_are_distorted(root, options, tmp_path):
    """The adapted model hears unadapted features less well."""
    costs = []
    for name, min_count in (("adapted", 50.0), ("unadapted", 1e9)):
        given = changed(options, min_count=min_count)
        lattices = run(root, tmp_path / name, given)
        paths = [best_path(x, acoustic_scale=0.083333) for x in lattices.values()]
        costs.append(sum(path.acoustic_cost for path in paths))
    frames = FrameStore.load(root / "other").begin[-1]
    assert costs[0] < costs[1] - 0.1 * frames


def test_bad_utterances_are_left_out_and_counted(root, options, tmp_path):
    store = FrameStore.load(root / "other")
    with FrameWriter(tmp_path / "bad", dim=2) as writer:
        for i, utterance in enumerate(store.utt_ids):
            frames = np.array(store.frames(i))
            if utterance == "u05":
                frames[3] = np.nan
            writer.append(utterance, store.speakers[i], store.texts[i], frames)
    for name in ("tri3", "tri3.fst", "lang"):
        (tmp_path / name).symlink_to(root / name)
    lattices = run(tmp_path, tmp_path / "out", options, frames="bad", allowed=0.1)
    assert len(lattices) == 17
    (entry,) = read_ledger(tmp_path / "out/ledger.jsonl")
    assert (entry.utterance, entry.action) == ("u05", "skipped")
    for matrix in dict(read_matrices(tmp_path / "out/trans.ark")).values():
        assert np.isfinite(matrix).all()
    with pytest.raises(UserError, match="skipped 1 of 18"):
        run(tmp_path, tmp_path / "strict", options, frames="bad")
    failing = options.replace(on_no_final="fail")
    with pytest.raises(UserError, match="u05"):
        run(tmp_path, tmp_path / "fail", failing, frames="bad", allowed=1.0)
    for name in ("strict", "fail"):
        assert not (tmp_path / name / "lattices.ark").exists()
        assert not (tmp_path / name / "decode.json").exists()


def without_times(path):
    """The contents of a `decode.json` that do not depend on the clock."""
    times = {"wall_seconds", "cpu_seconds", "real_time_factor_per_core"}
    times |= {"other_cpu_seconds"}
    summary = json.loads(path.read_text())
    return [(key, value) for key, value in summary.items() if key not in times]


def with_faults(root, folder):
    """The root with frames of which the first utterance has none that are finite."""
    store = FrameStore.load(root / "other")
    with FrameWriter(folder / "bad", dim=2) as writer:
        for i, utterance in enumerate(store.utt_ids):
            frames = np.array(store.frames(i))
            if i in {0, 5}:
                frames[3] = np.nan
            writer.append(utterance, store.speakers[i], store.texts[i], frames)
    for path in root.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize("is_adapted", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_a_decoding_join_to_the_bytes_of_the_whole(
    root, options, tmp_path, is_adapted, count
):
    """Speakers take turns, and of three speakers one of four parts has none."""
    root = with_faults(root, tmp_path)

    def decode(out, part=None):
        if is_adapted:
            run(root, out, options, frames="bad", allowed=0.12, part=part)
            return
        decode_lattices(
            SetJob(
                frames_dir=root / "bad",
                model_dir=root / "mono",
                lang_dir=root / "lang",
                out_dir=out,
                threads=1,
                max_skipped_fraction=0.12,
                part=part,
            ),
            graph=root / "mono.fst",
            options=options,
        )

    decode(tmp_path / "whole")
    parts = [tmp_path / f"{k}-of-{count}" for k in range(1, count + 1)]
    for part in parts:
        decode(part, part.name)
        assert not (part / "decode.json").exists()
    joined = tmp_path / "joined"
    transforms = joined / "trans.ark" if is_adapted else None
    # A part may have skipped more than its share; all of them together not.
    join_lattices(
        parts, joined, options=options, max_skipped_fraction=0.12,
        transforms=transforms,
    )  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in joined.iterdir())
    for name in names:
        if name == "decode.json":
            assert without_times(joined / name) == without_times(
                tmp_path / "whole" / name
            )
        else:
            wanted = (tmp_path / "whole" / name).read_bytes()
            assert (joined / name).read_bytes() == wanted, name
    with pytest.raises(UserError, match="skipped 2 of 18"):
        join_lattices(
            parts, tmp_path / "strict", options=options, max_skipped_fraction=0.1
        )
    assert not (tmp_path / "strict/lattices.ark").exists()


def test_a_part_that_skips_too_many_for_the_whole_ends_at_once(root, options, tmp_path):
    root = with_faults(root, tmp_path)
    with pytest.raises(UserError, match="skipped 1 of 18"):
        run(root, tmp_path / "out", options, frames="bad", allowed=0.05, part="1-of-2")


def random_lattice(seed, num_frames=5, width=3):
    """States in layers, an epsilon arc here and there, two final states."""
    rng = np.random.default_rng(seed)
    arcs, layer, count = [], [0], 1
    for _ in range(num_frames):
        new = list(range(count, count + width))
        count += width
        for s in layer:
            targets = rng.choice(new, 2, replace=False)
            ids = rng.integers(1, len(TID_TO_PDF), 2)
            arcs += [(s, *end, 0) for end in zip(targets, ids, strict=True)]
        reached = sorted({arc[1] for arc in arcs} & set(new))
        arcs.append((reached[0], reached[-1], 0, 1))
        layer = reached
    costs = rng.uniform(0, 5, (len(arcs), 2))
    final = np.full((count, 2), np.inf)
    final[layer] = rng.uniform(0, 1, (len(layer), 2))
    return Lattice.from_arcs(
        np.array(arcs, np.int32), costs.astype(np.float32), final.astype(np.float32)
    )


@pytest.mark.parametrize("seed", range(5))
def test_rescoring_replaces_acoustic_costs_and_nothing_else(seed):
    lattice = random_lattice(seed)
    rng = np.random.default_rng(seed)
    log_likes = rng.normal(-5, 3, (lattice.num_frames, TID_TO_PDF.max() + 1))
    found = rescore_acoustic(lattice, log_likes.astype(np.float32), TID_TO_PDF)
    for s in range(lattice.num_states):
        for arc in range(lattice.arc_begin[s], lattice.arc_begin[s + 1]):
            tid = lattice.transition_id[arc]
            wanted = -log_likes[lattice.frame[s], TID_TO_PDF[tid]] if tid else 0.0
            assert found.acoustic_cost[arc] == pytest.approx(wanted, rel=1e-6)
    is_final = np.isfinite(lattice.final_graph_cost)
    np.testing.assert_array_equal(found.final_acoustic_cost[is_final], 0.0)
    assert np.isinf(found.final_acoustic_cost[~is_final]).all()
    for name in ("graph_cost", "transition_id", "word", "final_graph_cost", "frame"):
        np.testing.assert_array_equal(getattr(found, name), getattr(lattice, name))
    with pytest.raises(UserError, match="a lattice of 5 frames and features of 4"):
        rescore_acoustic(lattice, log_likes[1:], TID_TO_PDF)


def test_posteriors_are_of_the_best_alignment_of_each_word_sequence():
    """Two alignments of word 1 and one of word 2; the costlier of the two is out."""
    arcs = [(0, 1, 1, 1), (0, 2, 2, 1), (0, 3, 3, 2)]
    arcs += [(1, 4, 1, 0), (2, 4, 2, 0), (3, 4, 3, 0)]
    costs = np.zeros((6, 2), np.float32)
    costs[:3, 1] = 1.0, 2.0, 1.0 + np.log(3.0)
    final = np.full((5, 2), np.inf, np.float32)
    final[4] = 0.0
    lattice = Lattice.from_arcs(np.array(arcs, np.int32), costs, final)
    found = word_posteriors(lattice, 8.0, 1.0)
    for t in range(2):
        assert found.frame(t) == [
            (1, pytest.approx(0.75)),
            (3, pytest.approx(0.25)),
        ]
    (only,) = word_posteriors(lattice, 0.5, 1.0).frame(0)
    assert only == (1, pytest.approx(1.0))
