"""FSTs of the types `olabel_lookahead` and `ngram`, and their composition.

The files were made by OpenFst 1.7.9 (Debian's libfst-tools): `fstconvert
--fst_type=olabel_lookahead --save_relabel_opairs=relabel` of a tree of seven words,
`fstconvert --fst_type=ngram` and `fstrelabel --relabel_ipairs=relabel` of a bigram
model, and `fstcompose` of the first and the second.
"""

import base64
import zlib
from collections import defaultdict

import numpy as np
import pytest

from latflow.decode.composed_graph import ComposedGraph, GraphParts
from latflow.decode.composition import ARCS, PAIRS, STATE_BITS, make_arcs
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC, read_header, read_symbols
from latflow.serving.vosk_folder import VoskGraph, in_one_numbering

WORDS = {"<eps>": 0, "w1": 1, "w4": 2, "w6": 3, "w7": 4, "w5": 5, "w3": 6, "w2": 7}
HCL = (
    "c-ozmze~eV5XWEAw2l3tt)ikLQlyH5gM)*EIjrE|V4Xxn(9~9g##U@WT&hmuAkv{Yy1DD%Kj5TPP"
    ">`;j9Ncvgiss=<y&ew~AC!B1?(Tb+yQJ0nbuq#i%h_fsW3Sk`+?Hu&%(U*Xe8J47&E2%ZzK_B#7s"
    "?sNKE+|=EInQHRvkUBb6?A4^93xT5)t>b3p+x@v?hCapdscFOmEy7Qw0k)?msLnVQq*hf<+~99TL"
    "_lVcinF9!XrEB(7f)Hy~j#N$#K|E-qoiB-dT)QF$5^<eNX;0}ahJvN!=AH2c?~D?>&8xzrALk^iH"
    "(2|mZVD}Ja{Cb|Bd$T^u}fcN|Im;k?HEflYcc+P9dQD9B|of{#?ZlHMF-)u+)zT0)=*GN3?_g>7v"
    "DutW+8PjbDkbZoq{>)7tbmI4;dDfEK&_e3#WFFjKaeiF)t^RB<l+XP^q8}jnL6OgUiu+=K^I_b8F"
    "sUCx`%0{4pq1!_$$VOcKA+QZ*M5`!?YjjL(jWeomd_GKl;}rDKT)C2XP&o8;`yBlI{HIUkmUo@33"
    "Fdkm-$4DikMe${K9L3D@0EvOhx**hX0>TrYB>vp8v{Z&-NSp0tnofKm"
)
NGRAM = (
    "c-p)6cT*iJ0|P@|dQoC72ar)*l9-p0Sd_v7WHSRXBSUEDQdJNQ0h|n|pyc<aI$j`Mo?nzw9G{n3u"
    "2)h~A_kS@hSDG#Y*Gt~?O?i?KspQ=k$EOe$UHM<WS%(-GS8G1nP<#~%rjy~;wc-zTnjSIrr1sd$^"
    "{u`qhD+%I-EQKQznMwUJ&>Tb;ZA^^l}ir7ApQ92pAY3G0Oxso&~B8<Q$kI@X50w$)l@bg380h*pb"
    "viyxUN}&fU?$DS_9)kmHX1j65L+zoZTJwf43S|E~P7KkhAV4^qX}c+~#S%7^y0T-R-ljX&GR^eZ{"
    "Ibf2*=wAFHu))#e15?BG$bJU*e`eOThA!~<sHTUg5U1D`;7rSZa#dFF2{P)ZDak~^9WTT$gfBDPe"
    "@L~Bkd)-ZE?M>sP99DgFa#-iC>F^`C*<O|HAlN<t^N(<|"
)
ACCEPTOR = (
    "c-p)6cT*iJ0|P^HeqM122ar)*l9-p0Sd_xV00E2)VN;i;GQa^Rl$L{wG}MDgCa_uvW@|iZ58|^Uv"
    "@yi=D>;DlvLLDZv+|)mFOX(N5(AkhfTqrt>$<H7njIi@Vp#M_qUkj@{%kLc#Aifu(>ixY2e5mg=D"
    "e%9Z;xz;OZORjW~jX&GYf6C99W@hL3*V1MIG3oav(ZMV1+#>3|XPL*8ZqH8<P24*B8UX1w`iySv#"
    ";Gx#!=NANGt$=Id@cYmaQcX`GY;2a^6(ADvM2J0<WsAp7&vB~}My_qU7Pv|~k5f81N#9$Ec5cTE)"
    "aKZ2X>S&`hY%68D62}!>p#~rYKn0hasOZLd-*V@}UAj^OG%i@4+-iPJiP|TZ=C**+a|MTB3qxe5="
    "m!bo5_{v5-0f#RP_$6%sy9WU5H%jd"
)
HCLG = (
    "c-n<lT}V@57~ZCv%bY(`H|O7+IyL`Ijfl?P&k-gTDkWiIq~^~sf1nxFMVf?(RESq~)1?>QM0gQ&("
    "?wxXP3XevqCi9<$bz7R5*_VZ=jglF7d&vzxAVOJ@B4h;*@vz9QKL?$yEr`LA2El1_(wX2x;rm-8+"
    "89Ky{>n5wnw*pRj6zKHga=JJ`G{r|F^^pDyGRy;|mZSTB8vr^~^+1VzEe1^B2$PB{G;b^o%05sf?"
    "bT!5j>hq2_{Xb254^2FqhGx0;_GVMRo5b8ZESQBO6!QpR67gH<xvK?bW~utN-Xn8A*aKDSTj3We!"
    "a9W#$(jK6vYYhbWO20O`MO$^q;V5b<Ym0(KjN97E|@ixZx9Kouqe?dF4(`?Tp9%xtx<FAXsx*4pO"
    "!F&XhvoVG4)>Wg>?`&z^qvLhLfcD&%cV3XW`PBEtKtS2aGjv$MN_a18HWO<}!l>3G*XQer!i4<Qj"
    "6H=IluP{+KbVRCDAbQjM;Bn9YA<anv)n?S3EDBVZVM<<_FA>s2!4b8C|+Zn0pdbyFY<3h@mucQ_g"
    "F$}ACj9;fBpuCAs*#7m>*DL)Od33d+8Jjs2|JCgOEt#nTdZ{&l~mKH)DY$ly8-J0IZ}Rv1mRIhO9"
    "#4o~*ZFC0!(={?9+WAW~5Ot+#SSD$4K0x({r`e;krStq1HRe+!vc8nKT@`Mo+}2Ltjqu(=2h)X(M"
    "SAD~C`llHP-0rma&){-Y3*$2OmLk9Bi?XU>!U)pDqe5}NOvN|t$P1Wgk@gs}Wn?m@JP3DKcA??#%"
    "kCVi+p>xjL(E~X|ZYO+kk@#td|6WlcauNTpoW2Wr$lt`*w~7PxC%E(nFh8z7vq$h_s;(`}k7$*@l"
    "eV)WAH}=<sVX9#v*%7kyt$tNC4<zHiRR}vxxh{MRzT*HMfg@o>d!|0{Jt4a5s^E|JaUl!r0qH!Ao"
    ";l%eqsCEJ@#WU$v=<0=OcbCH<v*I`c_Y@IYbGXPnG#I7zlq#NxlVyKV?K-i2OBmJqG;Wpmnu298c"
    "SC@2@3AobNY4*|mSlNj=4={*BT8i1|x-$sY45CH*biV?N~!fBpe<**(A"
)


@pytest.fixture
def files(tmp_path):
    for name, text in (("HCL", HCL), ("G", NGRAM), ("A", ACCEPTOR), ("HCLG", HCLG)):
        raw = zlib.decompress(base64.b85decode(text))
        (tmp_path / f"{name}.fst").write_bytes(raw)
    return tmp_path


def arcs_of(graph):
    """Return the arcs as (state, input, output, next state, cost rounded)."""
    return sorted(
        (int(state), int(a["ilabel"]), int(a["olabel"]), int(a["next_state"]),
         round(float(a["weight"]), 3))
        for state, a in zip(graph.sources(), graph.arcs, strict=True)
    )  # fmt: skip


def sequences(graph, length):
    """Return the least cost of each (input, output) with so many inputs at most."""
    best = defaultdict(lambda: np.inf)
    todo = [(graph.start, (), (), 0.0)]
    while todo:
        state, inputs, outputs, cost = todo.pop()
        if np.isfinite(graph.final[state]):
            key = inputs, outputs
            best[key] = min(best[key], cost + float(graph.final[state]))
        for arc in range(graph.arc_begin[state], graph.arc_begin[state + 1]):
            label, word = int(graph.ilabel[arc]), int(graph.olabel[arc])
            longer = inputs + (label,) * bool(label)
            if len(longer) <= length:
                more = outputs + (word,) * bool(word)
                to, weight = int(graph.next_state[arc]), float(graph.weight[arc])
                todo.append((to, longer, more, cost + weight))
    return dict(best)


def test_an_ngram_file_has_the_arcs_of_the_model_it_was_made_of(files):
    graph = Graph.load(files / "G.fst")
    model = Graph.load(files / "A.fst")
    assert (graph.num_states, graph.start) == (9, 1)
    # states are in another order: contexts by their words, the empty one first
    words = {
        int(graph.next_state[a]): int(graph.ilabel[a])
        for a in range(graph.arc_begin[1])
    }
    other = {
        int(model.next_state[a]): int(model.ilabel[a])
        for a in range(model.arc_begin[1], model.arc_begin[2])
    }
    by_word = {word: state for state, word in words.items()}
    same = {1: 0, 0: 1, **{state: by_word[word] for state, word in other.items()}}
    moved = [
        (same[state], label, label, same[to], cost)
        for state, label, _, to, cost in arcs_of(model)
    ]
    assert arcs_of(graph) == sorted(moved)
    finals = [model.final[state] for state in sorted(same, key=same.get)]
    np.testing.assert_array_equal(graph.final, np.array(finals, np.float32))
    assert graph.properties.is_ilabel_sorted
    np.testing.assert_array_equal(
        graph.num_input_epsilons, [0] + [1] * (graph.num_states - 1)
    )


def test_the_symbols_are_read(files):
    raw = memoryview((files / "G.fst").read_bytes())
    found, at = read_symbols(raw, read_header(raw).symbols)
    assert {word: found[word] for word in WORDS} == WORDS
    assert read_symbols(raw, at) == (found, read_header(raw).body)


def expanded(parts):
    """Compose all that can be reached."""
    composed = ComposedGraph(parts, np.arange(300), most_pairs=500, most_arcs=5000)
    made = composed.current().packed.composition
    pair = 0
    while pair < made.counts[PAIRS]:
        make_arcs(made, 2 * pair)
        pair += 1
    begin = made.states["begin"][: 2 * pair].reshape(-1, 2)
    source = np.repeat(np.arange(pair), begin[:, 1] - begin[:, 0])
    size = made.counts[ARCS]
    arcs = np.empty(size, ARC)
    arcs["ilabel"], arcs["olabel"] = made.transition_id[:size], made.word[:size]
    arcs["weight"] = made.weight[:size]
    arcs["next_state"] = (made.arcs["code"][:size] & STATE_BITS) // 2
    return Graph.from_arc_list(0, source, arcs, made.final[: 2 * pair : 2])


@pytest.mark.parametrize("grammar", ["G", "A"])
def test_the_composition_has_the_paths_and_costs_of_openfst(files, grammar):
    # the acceptor gives the numbers from before the words were numbered anew
    old = {f"w{number}": number for number in range(1, 8)}
    hcl, lm = in_one_numbering(
        VoskGraph(
            Graph.load(files / "HCL.fst"),
            Graph.load(files / f"{grammar}.fst"),
            WORDS if grammar == "G" else old,
        )
    )
    ours = expanded(GraphParts.of(hcl, lm, None))
    found, wanted = sequences(ours, 5), sequences(Graph.load(files / "HCLG.fst"), 5)
    if grammar == "A":
        new = {number: WORDS[f"w{number}"] for number in range(1, 8)}
        found = {
            (inputs, tuple(new[word] for word in words)): cost
            for (inputs, words), cost in found.items()
        }
    assert len(wanted) > 20
    assert found.keys() == wanted.keys()
    for key, cost in wanted.items():  # theirs has been rounded
        assert found[key] == pytest.approx(cost, abs=0.005)


@pytest.mark.parametrize("name", ["HCL", "G"])
def test_a_cut_file_is_refused_in_one_line(files, name):
    path = files / f"{name}.fst"
    raw = path.read_bytes()
    # behind the arcs HCL tells what can come next, which is found out anew
    whole = len(raw) - 8 if name == "G" else len(raw) // 2
    for length in range(0, whole, 7):
        path.write_bytes(raw[:length])
        with pytest.raises(UserError, match="FST|file is empty"):
            Graph.load(path)
