"""What lies where in a model folder of Vosk, and what it says.

Vosk knows two layouts. The new one has `am/`, `graph/`, `conf/`, `ivector/`; the old
one has all but `ivector/` and `rescore/` at the top, and no `model.conf`: the options
are built in.

The graph is `HCLG.fst`, or in two parts, `HCLr.fst` and `Gr.fst`, which Vosk composes
while it searches. `HCLr.fst` is of type `olabel_lookahead`: its words are numbered
again, which `Gr.fst` knows, an n-gram model whose symbol table has the words (type
`ngram`), or an acceptor of new numbers that gives out those of `words.txt`.

Source: vosk-api `src/model.cc` (`ConfigureV1`, `ConfigureV2`); Kaldi
`utils/mkgraph_lookahead.sh`, `feat/feature-{window,mfcc,fbank}.h`,
`feat/online-feature.h` and `online2/online-endpoint.h` for the options' names and
defaults.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from latflow.decode.options import EndpointOptions, NetworkScoreOptions, SearchOptions
from latflow.errors import UserError
from latflow.features.options import FrontEndOptions
from latflow.fst.graph import Graph
from latflow.fst.openfst import (
    HAS_INPUT_SYMBOLS,
    HAS_OUTPUT_SYMBOLS,
    map_file,
    read_header,
)
from latflow.fst.openfst import read_symbols as read_fst_symbols
from latflow.fst.optimize import remove_input_symbols
from latflow.kaldi.conf import options_of, read_conf_file, read_known
from latflow.lang.directory import read_symbols
from latflow.text_files import read_lines

log = logging.getLogger(__name__)
_MOST_LABELS = 1 << 26  # of words and transition-ids: arrays of this many are made
#: What Vosk has built in for folders of the old layout.
_BUILT_IN: Mapping[str, str] = MappingProxyType({
    "max-active": "7000", "beam": "13.0", "lattice-beam": "6.0",
    "acoustic-scale": "1.0", "frame-subsampling-factor": "3",
    "endpoint.silence-phones": "1:2:3:4:5:6:7:8:9:10",
    "endpoint.rule2.min-trailing-silence": "0.5",
    "endpoint.rule3.min-trailing-silence": "1.0",
    "endpoint.rule4.min-trailing-silence": "2.0",
})  # fmt: skip
# Options of Kaldi's front end whose other values ours lacks, and that value; options
# that only say how a program goes about it.
_FIXED = {
    "remove-dc-offset": "true", "round-to-power-of-two": "true", "raw-energy": "true",
    "energy-floor": "0", "htk-compat": "false", "vtln-warp": "1", "use-power": "true",
    "use-log-fbank": "true", "subtract-mean": "false", "blackman-coeff": "0.42",
}  # fmt: skip
_IGNORED = (
    "allow-downsample", "allow-upsample", "channel", "debug-mel", "max-feature-vectors",
    "min-duration", "output-format", "utt2spk", "verbose", "vtln-high", "vtln-low",
    "vtln-map", "write-utt2dur",
)  # fmt: skip
_FRONT_END = {
    "frame-length": "frame_length_ms", "frame-shift": "frame_shift_ms",
    "preemphasis-coefficient": "preemphasis", "window-type": "window_type",
    "dither": "dither", "snip-edges": "snip_edges", "num-mel-bins": "num_mel_bins",
    "low-freq": "low_freq", "high-freq": "high_freq", "use-energy": "use_energy",
    "num-ceps": "num_ceps", "cepstral-lifter": "cepstral_lifter",
    "sample-frequency": "sample-frequency",
}  # fmt: skip
# Kaldi's defaults.
_SEARCH = {
    "beam": "16", "lattice-beam": "10", "max-active": "2147483647", "min-active": "200"
}  # fmt: skip
_RULE = re.compile(r"endpoint\.(rule[1-5])\.([a-z-]+)")


@dataclass(frozen=True)
class VoskConf:
    """What the configuration says."""

    front_end: FrontEndOptions
    sample_rate: int
    search: SearchOptions
    endpoint: EndpointOptions
    acoustic_scale: float
    subsampling: int
    silence_phones: tuple[int, ...]


@dataclass(frozen=True)
class VoskFolder:
    """Where the parts of a model are, whether they are there or not.

    Attributes:
        top: the folder.
        model: `final.mdl`.
        conf: folder of `mfcc.conf` or `fbank.conf`.
        model_conf: `model.conf`; None in the old layout.
        graph: folder of the graph, of `words.txt` and of `disambig_tid.int`.
        phones: folder of `word_boundary.int` and the like.
        statistics: of online CMVN.
    """

    top: Path
    model: Path
    conf: Path
    model_conf: Path | None
    graph: Path
    phones: Path
    statistics: Path

    @property
    def ivector(self) -> Path:
        """Folder of the extractor."""
        return self.top / "ivector"

    @property
    def hclg(self) -> Path:
        """The whole graph."""
        return self.graph / "HCLG.fst"

    @property
    def has_parts(self) -> bool:
        """Return whether the graph is in two parts."""
        return not self.hclg.is_file() and (self.graph / "HCLr.fst").is_file()


def find_folder(top: Path) -> VoskFolder:
    """Return where the parts are, of either layout.

    Raises:
        UserError: there is no such folder.
    """
    if top.is_file():
        remedy = "unpack it, and name the folder that has am/ and conf/"
        raise UserError("is a file, not a folder", file=top, remedy=remedy)
    if not top.is_dir():
        raise UserError("no such folder", file=top, remedy="check the path")
    statistics = "global_cmvn.stats"
    is_old = (top / "final.mdl").is_file() and (top / "mfcc.conf").is_file()
    if is_old and not (top / "am/final.mdl").is_file():
        model, stats = top / "final.mdl", top / statistics
        return VoskFolder(top, model, top, None, top, top, stats)
    conf, graph = top / "conf", top / "graph"
    return VoskFolder(
        top,
        top / "am/final.mdl",
        conf,
        conf / "model.conf",
        graph,
        graph / "phones",
        top / "am" / statistics,
    )


def check_files(found: VoskFolder) -> None:
    """Check that the files are there that each model has, before much is read.

    Raises:
        UserError: one is missing.
    """
    parts = (found.graph / "Gr.fst", found.graph / "disambig_tid.int")
    for path in (found.model, *(parts if found.has_parts else (found.hclg,))):
        if not path.is_file():
            remedy = "name the folder of a model, with am/, conf/ and graph/"
            inner = sorted(found.top.glob("*/am/final.mdl"))
            remedy += f": {inner[0].parents[1]}" if inner else ""
            raise UserError("no such file", file=path, remedy=remedy)
    if not any((found.conf / f"{kind}.conf").is_file() for kind in ("mfcc", "fbank")):
        raise UserError(
            "no mfcc.conf (or fbank.conf) here",
            file=found.conf,
            remedy="copy there, by that name, how the model's features are computed",
        )


# -- graph and words -----------------------------------------------------------------


@dataclass(frozen=True)
class VoskGraph:
    """A graph in two parts, as Vosk composes them.

    Attributes:
        hcl: transition-ids to words; disambiguation symbols are epsilon already.
        grammar: takes the words of `hcl`, gives those of `words`; back-off arcs take
            epsilon (type `ngram`) or the word #0, and give epsilon. Sorted by the words
            that it takes.
        words: the ids by their words, as the grammar gives them.
    """

    hcl: Graph
    grammar: Graph
    words: Mapping[str, int]


def read_graph_parts(found: VoskFolder) -> VoskGraph:
    """Read `HCLr.fst`, `Gr.fst`, the words and `disambig_tid.int`.

    Raises:
        UserError: a file is missing or garbled, or the words of an FST are none.
    """
    path = found.graph / "disambig_tid.int"
    symbols = []
    for number, text in read_lines(path):
        if not re.fullmatch(r"\s*\d{1,9}\s*", text):
            raise UserError(
                f"line {number} is not an input label: {text[:40]!r}",
                file=path,
                remedy="take the file that was made with HCLr.fst",
            )
        symbols.append(int(text))
    hcl = Graph.load(found.graph / "HCLr.fst")
    grammar = Graph.load(found.graph / "Gr.fst")
    for graph, name in ((hcl, "HCLr.fst"), (grammar, "Gr.fst")):
        labels = graph.arcs["olabel"], graph.arcs["ilabel"]
        lowest = min(int(label.min(initial=0)) for label in labels)
        highest = max(int(label.max(initial=0)) for label in labels)
        if lowest < 0 or highest > _MOST_LABELS:
            raise UserError(
                f"labels {lowest} to {highest}",
                file=found.graph / name,
                remedy="take the file as Vosk delivers it",
            )
    hcl = remove_input_symbols(hcl, symbols)
    return VoskGraph(hcl, grammar, read_words(found))


def in_one_numbering(parts: VoskGraph) -> tuple[Graph, Graph]:
    """Return HCL and G with the ids of `words` on all arcs that have words.

    Arcs of HCL with words that G lacks are left out. The back-off arcs of a grammar
    that take #0 take it still, with its id.

    Returns:
        (HCL, G).

    Raises:
        UserError: the grammar gives two words for one that it takes.
    """
    grammar = parts.grammar
    if np.array_equal(grammar.ilabel, grammar.olabel):
        return parts.hcl, grammar
    size = 1 + max(int(parts.hcl.olabel.max()), int(grammar.ilabel.max()))
    table = np.full(size, -1, np.int32)  # of words that G lacks
    table[0] = 0
    is_word = grammar.olabel > 0
    table[grammar.ilabel[is_word]] = grammar.olabel[is_word]
    if (table[grammar.ilabel[is_word]] != grammar.olabel[is_word]).any():
        raise UserError(
            "G gives two words for one that it takes",
            remedy="take HCLr.fst and Gr.fst of one model",
        )
    if "#0" in parts.words:
        table[grammar.ilabel[~is_word & (grammar.ilabel > 0)]] = parts.words["#0"]
    hcl, arcs = parts.hcl, np.array(grammar.arcs)
    arcs["ilabel"] = table[arcs["ilabel"]]
    hcl_arcs = np.array(hcl.arcs)
    hcl_arcs["olabel"] = table[hcl_arcs["olabel"]]
    is_known = hcl_arcs["olabel"] >= 0
    hcl = Graph.from_arc_list(
        hcl.start, hcl.sources()[is_known], hcl_arcs[is_known], np.asarray(hcl.final)
    )
    return hcl, Graph(grammar.start, grammar.states, arcs)


def read_words(found: VoskFolder) -> dict[str, int]:
    """Return the ids of the words: of the graph's symbol table, else of `words.txt`.

    Raises:
        UserError: none were found.
    """
    name = "Gr.fst" if found.has_parts else "HCLG.fst"
    words = _output_symbols(found.graph / name)
    return read_symbols(found.graph / "words.txt") if words is None else words


def _output_symbols(path: Path) -> dict[str, int] | None:
    """Return the output symbols of an FST; None where it has none.

    Of several symbols with one id the last keeps it, as in OpenFst: numbering again
    leaves such, which no arc has.
    """
    buffer = map_file(path)
    header = read_header(buffer, name=path)
    if not header.flags & HAS_OUTPUT_SYMBOLS:
        return None
    at = header.symbols
    if header.flags & HAS_INPUT_SYMBOLS:
        _, at = read_fst_symbols(buffer, at, name=path)
    symbols, _ = read_fst_symbols(buffer, at, name=path)
    by_id = {number: symbol for symbol, number in symbols.items()}
    if len(by_id) < len(symbols):
        dropped = sorted(symbols.keys() - set(by_id.values()))
        log.warning(
            "%s: %d words have the id of another and are left out: %s",
            path,
            len(dropped),
            ", ".join(dropped[:5]),
        )
    return {symbol: number for number, symbol in by_id.items()}


# -- configuration -----------------------------------------------------------------


def parse_ids(text: str, path: Path) -> tuple[int, ...]:
    """Return ids with colons or commas between them.

    Args:
        text: the ids.
        path: of the file that has them, for messages.

    Raises:
        UserError: something is not an id.
    """
    found = re.split(r"[:,\s]+", text.strip(":, \n\t"))
    for word in filter(None, found):
        if not re.fullmatch(r"\d{1,9}", word, re.ASCII):
            remedy = "give the numbers of the phones of silence, with colons between"
            raise UserError(
                f"{word[:40]!r} is not an id of a phone", file=path, remedy=remedy
            )
    return tuple(map(int, filter(None, found)))


def read_conf(found: VoskFolder) -> VoskConf:
    """Read `mfcc.conf` (or `fbank.conf`) and `model.conf`, or what Vosk has built in.

    Raises:
        UserError: a file is missing, or an option has a value that ours lacks.
    """
    kind = "mfcc" if (found.conf / "mfcc.conf").is_file() else "fbank"
    path = found.conf / f"{kind}.conf"
    front_end, rate = _front_end(path, kind)
    values = dict(_BUILT_IN)
    if found.model_conf is not None:
        path = found.model_conf
        values = read_conf_file(path)
    search = {
        key.replace("-", "_"): values.pop(key, default)
        for key, default in _SEARCH.items()
    }
    rules: dict[str, dict[str, str]] = {}
    for key in list(values):
        if (rule := _RULE.fullmatch(key)) is not None:
            name, part = rule[1], rule[2].replace("-", "_")
            rules.setdefault(name, {})[part] = values.pop(key)
    phones = parse_ids(values.pop("endpoint.silence-phones", ""), path)
    factor = values.pop("frame-subsampling-factor", "1")
    scale = values.pop("acoustic-scale", "0.1")
    for key in values:
        log.warning("%s: --%s is not used", path, key)
    if not re.fullmatch(r"[1-9]\d?", factor):
        raise UserError(f"frame-subsampling-factor is {factor[:40]}", file=path)
    scores = options_of(NetworkScoreOptions, {"acoustic_scale": scale}, path)
    return VoskConf(
        front_end,
        rate,
        options_of(SearchOptions, search, path),
        options_of(EndpointOptions, rules, path),
        scores.acoustic_scale or 1.0,
        int(factor),
        phones,
    )


def _front_end(path: Path, kind: str) -> tuple[FrontEndOptions, int]:
    """Read how features are computed, and the sample rate."""
    given = read_known(path, _FRONT_END, fixed=_FIXED, ignored=_IGNORED)
    rate = given.pop("sample-frequency", "16000")
    # Kaldi's defaults, where ours differ
    values = {"use_energy": "true"} if kind == "mfcc" else {}
    options = options_of(FrontEndOptions, {"type": kind, **values, **given}, path)
    try:
        found = float(rate)
    except ValueError:
        found = 0.0
    if not 1000 <= found <= 192000 or found != int(found):
        raise UserError(f"sample-frequency is {rate[:40]}", file=path)
    return options, int(found)
