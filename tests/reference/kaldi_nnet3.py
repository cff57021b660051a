"""An nnet3 made of configuration text by hand: written, and evaluated, naively.

The writer follows Kaldi's `Write` functions, with tokens that training leaves; the
evaluator computes a node at a time of the features by calling itself for what the
descriptor names. Neither uses any code of latflow's.
"""

import re
import struct

import numpy as np


def xconfig_lines(num_pdfs=7, dim=6, ivector_dim=0):
    """Return the nodes that Kaldi's xconfig makes of a small TDNN-F.

    Lines as in mini_librispeech's recipe: idct, batch norm, SpecAugment, deltas, with
    the i-vector if there is one behind them, TDNN, factorized layers (time strides 1, 0
    and 3), prefinal layers and both outputs.
    """
    lines = [f"input-node name=input dim={dim}"]
    if ivector_dim:
        lines.insert(0, f"input-node name=ivector dim={ivector_dim}")
    components = {}

    def node(name, kind, source, **config):
        components[name] = (kind, config)
        lines.append(f"component-node name={name} component={name} input={source}")
        return name

    at = node("idct", "FixedAffineComponent", "input", rows=dim, columns=dim)
    at = node("batchnorm0", "BatchNormComponent", at, dim=dim)
    at = node("spec-augment.freq-mask", "GeneralDropoutComponent", at, dim=dim)
    at = node("spec-augment.time-mask", "SpecAugmentTimeMaskComponent", at, dim=dim)
    lines += [  # Kaldi scales a node in one way alone in a descriptor
        f"dim-range-node name={at}_{copy} input-node={at} dim-offset=0 dim={dim}"
        for copy in ("copy1", "copy2")
    ]
    deltas = (
        f"Append(Offset({at}, 0), "
        f"Sum(Offset(Scale(-1.0, {at}_copy1), -1), Offset({at}, 1)), "
        f"Sum(Offset({at}, -2), Sum(Offset({at}, 2), "
        f"Offset(Scale(-2.0, {at}_copy2), 0))))"
    )
    at = node("delta_2", "NoOpComponent", deltas, dim=3 * dim)
    at = node("delta", "BatchNormComponent", at, dim=3 * dim)
    size, narrow = 8, 3
    if ivector_dim:
        both = f"Append({at}, Scale(0.4, ReplaceIndex(ivector, t, 0)))"
        at = node("input2", "NoOpComponent", both, dim=3 * dim + ivector_dim)
    at = node("tdnn1.affine", "NaturalGradientAffineComponent", at, rows=size,
              columns=3 * dim + ivector_dim)  # fmt: skip
    at = node("tdnn1.relu", "RectifiedLinearComponent", at, dim=size)
    at = node("tdnn1.batchnorm", "BatchNormComponent", at, dim=size)
    at = node("tdnn1.dropout", "GeneralDropoutComponent", at, dim=size)
    for number, stride in enumerate((1, 1, 0, 3, 3), start=2):
        name, past = f"tdnnf{number}", at
        before, behind = ([-stride, 0], [0, stride]) if stride else ([0], [0])
        at = node(f"{name}.linear", "TdnnComponent", at, rows=narrow,
                  columns=size * len(before), offsets=before, bias=False)  # fmt: skip
        at = node(f"{name}.affine", "TdnnComponent", at, rows=size,
                  columns=narrow * len(behind), offsets=behind)  # fmt: skip
        at = node(f"{name}.relu", "RectifiedLinearComponent", at, dim=size)
        at = node(f"{name}.batchnorm", "BatchNormComponent", at, dim=size)
        at = node(f"{name}.dropout", "GeneralDropoutComponent", at, dim=size)
        at = node(f"{name}.noop", "NoOpComponent", f"Sum(Scale(0.66, {past}), {at})",
                  dim=size)  # fmt: skip
    trunk = node("prefinal-l", "LinearComponent", at, rows=4, columns=size)
    for branch, end in (("chain", "output"), ("xent", "output-xent")):
        name = f"prefinal-{branch}"
        at = node(f"{name}.affine", "NaturalGradientAffineComponent", trunk, rows=size,
                  columns=4)  # fmt: skip
        at = node(f"{name}.relu", "RectifiedLinearComponent", at, dim=size)
        at = node(f"{name}.batchnorm1", "BatchNormComponent", at, dim=size, rms=0.5)
        at = node(f"{name}.linear", "LinearComponent", at, rows=4, columns=size)
        at = node(f"{name}.batchnorm2", "BatchNormComponent", at, dim=4)
        at = node(f"{end}.affine", "NaturalGradientAffineComponent", at, rows=num_pdfs,
                  columns=4)  # fmt: skip
        if branch == "xent":
            at = node(f"{end}.log-softmax", "LogSoftmaxComponent", at, dim=num_pdfs)
        lines.append(f"output-node name={end} input={at} objective=linear")
    return lines, components


class HandWritten:
    """Nodes, and components with random parameters."""

    def __init__(self, lines, components, seed=0):
        self.lines, self.components = lines, components
        rng = np.random.default_rng(seed)
        self.values = {
            name: self._draw(rng, kind, config)
            for name, (kind, config) in components.items()
        }
        self._inputs = {}
        for line in lines:
            found = re.fullmatch(
                r"(?:component|output)-node name=(\S+)(?: component=(\S+))? "
                r"input=(.*?)(?: objective=linear)?",
                line,
            )
            if found:
                self._inputs[found[1]] = (found[2], found[3])
        self._ranges = {}
        for line in lines:
            found = re.fullmatch(
                r"dim-range-node name=(\S+) input-node=(\S+) "
                r"dim-offset=(\d+) dim=(\d+)",
                line,
            )
            if found:
                self._ranges[found[1]] = found[2], int(found[3]), int(found[4])

    @staticmethod
    def _draw(rng, kind, config):
        """Return random parameters of a component."""
        if "rows" in config:
            matrix = rng.normal(size=(config["rows"], config["columns"]))
            matrix /= np.sqrt(config["columns"])
            has_bias = kind != "LinearComponent" and config.get("bias", True)
            bias = rng.normal(size=config["rows"] if has_bias else 0)
            return matrix.astype(np.float32), bias.astype(np.float32)
        if kind == "BatchNormComponent":
            mean, variance = rng.normal(size=config["dim"]), rng.random(config["dim"])
            return mean.astype(np.float32), variance.astype(np.float32)
        return ()

    # -- file ----------------------------------------------------------------------

    def raw(self):
        """Return the bytes, from `<Nnet3>` to the priors."""
        out = b"<Nnet3> \n" + "".join(f"{x}\n" for x in self.lines).encode() + b"\n"
        out += b"<NumComponents> " + _int(len(self.components))
        for name, (kind, config) in self.components.items():
            out += f"<ComponentName> {name} <{kind}> ".encode()
            out += self._body(name, kind, config) + f"</{kind}> ".encode()
        out += b"</Nnet3> <LeftContext> " + _int(20) + b"<RightContext> " + _int(20)
        return out + b"<Priors> " + _vector(np.zeros(0))

    def _body(self, name, kind, config):
        values = self.values[name]
        common = b"<MaxChange> " + _float(0.75) + b"<L2Regularize> " + _float(0.01)
        common += b"<LearningRate> " + _float(0.001)
        if kind == "FixedAffineComponent":
            return (b"<LinearParams> " + _matrix(values[0]) + b"<BiasParams> "
                    + _vector(values[1]))  # fmt: skip
        if kind == "NaturalGradientAffineComponent":
            return (common + b"<LinearParams> " + _matrix(values[0]) + b"<BiasParams> "
                    + _vector(values[1]) + b"<RankIn> " + _int(20) + b"<RankOut> "
                    + _int(80) + b"<UpdatePeriod> " + _int(4) + b"<NumSamplesHistory> "
                    + _float(2000.0) + b"<Alpha> " + _float(4.0))  # fmt: skip
        if kind == "LinearComponent":
            return (common + b"<Params> " + _matrix(values[0])
                    + b"<OrthonormalConstraint> " + _float(-1.0)
                    + b"<UseNaturalGradient> F<RankInOut> " + _int(20) + _int(80)
                    + b"<Alpha> " + _float(4.0) + b"<NumSamplesHistory> "
                    + _float(2000.0) + b"<UpdatePeriod> " + _int(4))  # fmt: skip
        if kind == "TdnnComponent":
            offsets = np.array(config["offsets"], "<i4")
            return (common + b"<TimeOffsets> " + struct.pack("<bi", 4, len(offsets))
                    + offsets.tobytes() + b"<LinearParams> " + _matrix(values[0])
                    + b"<BiasParams> " + _vector(values[1])
                    + b"<OrthonormalConstraint> " + _float(-1.0)
                    + b"<UseNaturalGradient> T<NumSamplesHistory> " + _float(2000.0)
                    + b"<AlphaInOut> " + _float(4.0) + _float(4.0) + b"<RankInOut> "
                    + _int(20) + _int(80))  # fmt: skip
        dim = b"<Dim> " + _int(config["dim"])
        if kind == "BatchNormComponent":
            return (dim + b"<BlockDim> " + _int(config["dim"]) + b"<Epsilon> "
                    + _float(0.001) + b"<TargetRms> " + _float(config.get("rms", 1.0))
                    + b"<TestMode> F<Count> " + _float(500.0) + b"<StatsMean> "
                    + _vector(values[0]) + b"<StatsVar> "
                    + _vector(values[1]))  # fmt: skip
        if kind == "GeneralDropoutComponent":
            return (dim + b"<BlockDim> " + _int(config["dim"]) + b"<TimePeriod> "
                    + _int(0) + b"<DropoutProportion> " + _float(0.1)
                    + b"<TestMode> <Continuous> ")  # fmt: skip
        if kind == "SpecAugmentTimeMaskComponent":
            return (dim + b"<ZeroedProportion> " + _float(0.2)
                    + b"<TimeMaskMaxFrames> " + _int(10))  # fmt: skip
        if kind == "NoOpComponent":
            return dim + b"<BackpropScale> " + _float(1.0)
        averages = np.full(config["dim"], 0.5)
        return (dim + b"<ValueAvg> " + _vector(averages) + b"<DerivAvg> "
                + _vector(averages) + b"<Count> " + struct.pack("<bd", 8, 100.0)
                + b"<NumDimsSelfRepaired> " + _float(0.0) + b"<NumDimsProcessed> "
                + _float(8.0) + b"<SelfRepairScale> " + _float(1e-5))  # fmt: skip

    # -- evaluation ------------------------------------------------------------------

    def evaluate(self, features, subsampling, output="output", ivector=None):
        """Return the output of an utterance, [ceil(T / subsampling), K], float64."""
        cache = {}
        last = len(features) - 1

        def at(node, time):
            if node == "input":
                return features[min(max(time, 0), last)].astype(np.float64)
            if node == "ivector":
                assert time == 0  # there is one
                return ivector.astype(np.float64)
            if node in self._ranges:
                source, begin, count = self._ranges[node]
                return at(source, time)[begin : begin + count]
            if (node, time) not in cache:
                component, descriptor = self._inputs[node]
                if component and self.components[component][0] == "TdnnComponent":
                    offsets = self.components[component][1]["offsets"]
                    seen = np.concatenate([told(descriptor, time + o) for o in offsets])
                else:
                    seen = told(descriptor, time)
                if component:
                    seen = self._apply(component, seen)
                cache[node, time] = seen
            return cache[node, time]

        def told(text, time):
            name, pieces = _split(text)
            if name == "Append":
                return np.concatenate([told(piece, time) for piece in pieces])
            if name == "Sum":
                return sum(told(piece, time) for piece in pieces)
            if name == "Offset":
                return told(pieces[0], time + int(pieces[1]))
            if name == "ReplaceIndex":
                assert [piece.strip() for piece in pieces[1:]] == ["t", "0"]
                return told(pieces[0], 0)
            if name == "Scale":
                return float(pieces[0]) * told(pieces[1], time)
            return at(name, time)

        return np.stack([at(output, t) for t in range(0, last + 1, subsampling)])

    def _apply(self, component, seen):
        """Return what a component makes of a frame."""
        kind, config = self.components[component]
        values = [value.astype(np.float64) for value in self.values[component]]
        if "rows" in config:
            return values[0] @ seen + (values[1] if len(values[1]) else 0.0)
        if kind == "BatchNormComponent":
            return (seen - values[0]) / np.sqrt(values[1] + 1e-3) * config.get("rms", 1)
        if kind == "RectifiedLinearComponent":
            return np.maximum(seen, 0.0)
        if kind == "LogSoftmaxComponent":
            return seen - np.log(np.exp(seen).sum())
        return seen


def _split(text):
    """Return a descriptor's name and what stands between its brackets."""
    text = text.strip()
    if "(" not in text:
        return text, []
    name, _, inner = text[:-1].partition("(")
    pieces, depth, begin = [], 0, 0
    for i, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            pieces.append(inner[begin:i])
            begin = i + 1
    return name, [*pieces, inner[begin:]]


def _int(value):
    return struct.pack("<bi", 4, value)


def _float(value):
    return struct.pack("<bf", 4, value)


def _vector(values):
    return b"FV " + _int(len(values)) + np.asarray(values, "<f4").tobytes()


def _matrix(values):
    rows, columns = values.shape
    return b"FM " + _int(rows) + _int(columns) + np.asarray(values, "<f4").tobytes()
