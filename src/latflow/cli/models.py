"""Commands about acoustic models and criteria."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from latflow.cli.commands import Arguments, Group, flag, option, own_folder
from latflow.errors import UserError

COMMANDS = Group()
_MODEL_FOLDER = own_folder("network.yaml", "weights.safetensors")


@COMMANDS.command("model-info", option("model", "final.mdl, or a model package"))
def _model_info(arguments: Arguments) -> None:
    """Print sizes of a Kaldi final.mdl (gmm-info), or the contents of a package.

    A package whose files are not those that were packaged is refused.
    """
    from latflow.gmm.model import AcousticModel
    from latflow.serving.package_info import (
        check_files,
        describe,
        read_info,
    )
    from latflow.serving.session_search import why_no_words

    folder = Path(arguments.model)
    if folder.is_dir():
        info = read_info(folder)
        check_files(folder, info)
        is_rescored = info.rescoring is not None
        sys.stdout.write(describe(info, why_no_words(folder, is_rescored=is_rescored)))
        return

    model = AcousticModel.load(arguments.model)
    for name, value in (
        ("number of phones", len(model.transitions.topology.phones)),
        ("number of pdfs", model.gmms.num_pdfs),
        ("number of transition-ids", model.transitions.num_transition_ids),
        ("number of transition-states", model.transitions.num_states),
        ("feature dimension", model.gmms.dim),
        ("number of gaussians", model.gmms.num_gaussians),
    ):
        sys.stdout.write(f"{name} {value}\n")


@COMMANDS.command(
    "model-copy",
    option("model", "final.mdl to read"),
    option("out", "file to write"),
    flag("--text", "write Kaldi's text form"),
)
def _model_copy(arguments: Arguments) -> None:
    """Copy a final.mdl, as text or binary."""
    from latflow.gmm.model import AcousticModel

    model = AcousticModel.load(arguments.model)
    model.save(arguments.out, binary=not arguments.text)


@COMMANDS.command(
    "network",
    option("description", "YAML file; docs/networks.md", nargs="?"),
    option(
        "--dim-in",
        "features per frame; of several streams side by side NAME=N,NAME=N",
        "40",
        metavar="N",
    ),
    option(
        "--classes",
        "number of classes, or TARGET=N for each target",
        ["1000"],
        nargs="+",
        metavar="N",
    ),
    option("--step", "the network of this step of layer-wise pretraining", type=int),
    option("--svg", "file to draw the network to"),
    flag("--layers", "print all layer classes with options"),
    option(
        "--update",
        "renew the list of layer classes in a document (docs/networks.md)",
        metavar="DOC",
    ),
    example="network config/networks/tdnnf.yaml --dim-in 40 --classes 1200",
)
def _network(arguments: Arguments) -> None:
    """Print a network's layers, parameters and receptive field, or draw it.

    A batch goes through it first, so that layers that fail are named.
    """
    if arguments.update is not None:
        _update(Path(arguments.update))
    elif arguments.layers:
        from latflow.nnet.registry import layer_reference

        sys.stdout.write(layer_reference())
    elif arguments.description is None:
        raise UserError("no description", remedy="name a file, or ask for --layers")
    else:
        _describe(arguments)


def _update(document: Path) -> None:
    """Renew the list of layer classes in a document."""
    from latflow.files import write_text
    from latflow.nnet.registry import in_document

    if not document.is_file():
        raise UserError("no such document", file=document)
    text = in_document(document)
    write_text(document, text)


def _describe(arguments: Arguments) -> None:
    """Print the table of a network; draw it where that is asked for."""
    from latflow.files import write_text
    from latflow.nnet.description import NetworkDescription
    from latflow.nnet.drawing import network_svg
    from latflow.nnet.network import Network
    from latflow.nnet.pretraining import shallower

    parts = _parts(arguments)
    named = parts if "" not in parts else {}
    description = NetworkDescription.load(arguments.description).with_parts(named)
    if arguments.step is not None:
        if arguments.step < 0:
            raise UserError(f"--step is {arguments.step}, below 0")
        description = shallower(description, arguments.step)
    targets = {loss.target for loss in description.outputs.values()}
    network = Network(description, sum(parts.values()), _classes(arguments, targets))
    network.try_out()
    heading = f"{description.text}\n\n" if description.text else ""
    sys.stdout.write(f"{heading}{network.summary()}\n")
    if arguments.svg is not None:
        write_text(arguments.svg, network_svg(network.graph(), description.text))


def _parts(arguments: Arguments) -> dict[str, int]:
    """Return features per frame by stream; one of no name where there is one number."""
    given = arguments.dim_in
    pairs = [setting.rpartition("=") for setting in given.split(",")]
    parts = {name: int(number) for name, _, number in pairs if number.isdecimal()}
    if len(parts) < len(pairs) or ("" in parts and len(parts) > 1):
        raise UserError(f"--dim-in {given} is neither N nor NAME=N,NAME=N")
    if min(parts.values()) < 1:
        raise UserError(f"--dim-in is {given}, below 1")
    return parts


def _classes(arguments: Arguments, targets: set[str]) -> dict[str, int]:
    """Return the number of classes by target; one number alone is for all."""
    classes = {}
    for setting in arguments.classes:
        name, _, number = setting.rpartition("=")
        if not number.isdecimal():
            raise UserError(f"--classes {setting} is neither N nor TARGET=N")
        for target in [name] if name else targets:
            classes[target] = int(number)
    return classes


_MODEL = (
    option("model", "model folder, as training wrote it"),
    option("frames", "frame store of the network's features"),
)
_BATCHES = (
    option("--max-frames", "frames scored at once", 8000),
    option("--device", "processor", "auto", choices=("auto", "cpu", "cuda")),
)


@COMMANDS.command(
    "forward",
    *_MODEL,
    option("out", "file to write"),
    option(
        "--form",
        "Kaldi's archive of matrices, HDF5 in RETURNN's layout, or a new folder with "
        "cuts that have an array each, in Lhotse's storage",
        "ark",
        choices=("ark", "hdf5", "lhotse"),
    ),
    option("--cuts", "cuts.jsonl.gz of the utterances, for the form lhotse"),
    option("--scp", "scp file of the archive to write too"),
    option(
        "--prior-scale",
        "factor on the log priors that are taken off; 0 gives log posteriors; "
        "by default 1, or 0 for LF-MMI and CTC",
        type=float,
    ),
    option(
        "--output",
        "output that is not decoded: log posteriors, or features; or a layer of the "
        "network, by its name: what it gives",
    ),
    *_BATCHES,
    option("--threads", "threads of torch", 2),
)
def _forward(arguments: Arguments) -> None:
    """Write a network's log-likelihoods, or what a layer gives, of all frames."""
    from latflow.training.forward import ScoreFile, forward

    to = ScoreFile(
        arguments.out, form=arguments.form, cuts=arguments.cuts, scp=arguments.scp
    )
    forward(
        arguments.frames,
        arguments.model,
        to,
        prior_scale=arguments.prior_scale,
        max_frames=arguments.max_frames,
        output=arguments.output,
        device=arguments.device,
        threads=arguments.threads,
    )


@COMMANDS.command(
    "evaluate",
    *_MODEL,
    option("alignments", "ali.ark of the network's own system"),
    *_BATCHES,
    example="evaluate results/x/nnet/blstm results/x/streams/gmm/frames/dev "
    "results/x/align/tri3/dev/ali.ark",
)
def _evaluate(arguments: Arguments) -> None:
    """Print a network's loss and frame errors on a set, as JSON."""
    from latflow.training.analysis import evaluate_model

    found = evaluate_model(
        arguments.frames,
        arguments.model,
        arguments.alignments,
        max_frames=arguments.max_frames,
        device=arguments.device,
    )
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


@COMMANDS.command(
    "analyze",
    *_MODEL,
    option("--alignments", "ali.ark of the network's own system, for confusions"),
    option("--most", "confusions that are listed", 20),
    option("--saliency", "picture of what the network looks at: .svg, .png or .pdf"),
    option("--utterance", "utterance of the picture, by its id"),
    option("--frame", "its output frame alone, from 0", type=int),
    *_BATCHES,
    example="analyze results/x/nnet/blstm results/x/streams/gmm/frames/dev",
)
def _analyze(arguments: Arguments) -> None:
    """Print what layers give on a set, dead units and confusions, as JSON.

    With --saliency draw what the network looks at in an utterance, too.
    """
    from latflow.training.analysis import analyze

    if arguments.saliency is not None:
        _draw_saliency(arguments)
    elif arguments.utterance is not None or arguments.frame is not None:
        raise UserError("--utterance and --frame are for --saliency")
    found = analyze(
        arguments.frames,
        arguments.model,
        alignments=arguments.alignments,
        most=arguments.most,
        max_frames=arguments.max_frames,
        device=arguments.device,
    )
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def _draw_saliency(arguments: Arguments) -> None:
    from latflow.features.source import open_frames
    from latflow.training.forward import Forward
    from latflow.training.saliency import draw_saliency

    if arguments.utterance is None:
        raise UserError("--saliency is of one utterance", remedy="name it: --utterance")
    store = open_frames(arguments.frames)
    forward = Forward.load(
        store, arguments.model, device=arguments.device, prior_scale=0.0
    )
    draw_saliency(forward, arguments.utterance, arguments.saliency, arguments.frame)


@COMMANDS.command(
    "priors",
    *_MODEL,
    option("out", "file of the priors, as priors.npy of a model folder"),
    *_BATCHES,
    example="priors results/x/nnet/blstm results/x/streams/gmm/frames/train priors.npy",
)
def _priors(arguments: Arguments) -> None:
    """Write a network's mean posteriors over all frames, which serve as priors."""
    import numpy as np

    from latflow.files import atomic_output
    from latflow.training.analysis import mean_posteriors

    found = mean_posteriors(
        arguments.frames,
        arguments.model,
        max_frames=arguments.max_frames,
        device=arguments.device,
    )
    with atomic_output(arguments.out) as path, path.open("wb") as stream:
        np.save(stream, found)


@COMMANDS.command(
    "average",
    option("models", "model folders of the same layers", nargs="+"),
    option("--out", "model folder to write", required=True, type=_MODEL_FOLDER),
)
def _average(arguments: Arguments) -> None:
    """Write a model whose parameters are the mean of several models'."""
    from latflow.nnet.model_dir import average_models

    average_models(arguments.models, arguments.out)


@COMMANDS.command(
    "fuse",
    option(
        "models", "model folders of one tree that read the same features", nargs="+"
    ),
    option("--out", "model folder to write", required=True, type=_MODEL_FOLDER),
)
def _fuse(arguments: Arguments) -> None:
    """Write a model whose scores are the mean of several models'."""
    from latflow.nnet.score_fusion import fuse_models

    fuse_models(arguments.models, arguments.out)


@COMMANDS.command(
    "selftest",
    option("--criterion", "only those whose name begins so"),
    option("--trials", "lattices a proof", 5),
)
def _selftest(arguments: Arguments) -> int:
    """Prove the criteria's values and gradients on this machine; status 1 if not."""
    from latflow.criteria.selftest import LIMITS, run

    if arguments.trials < 1:
        raise UserError("no trials asked for", remedy="set --trials to 1 or more")
    failed = 0
    sys.stdout.write(f"{'criterion':<26}{'proof':<14}{'deviation':>10}  {'limit':>7}\n")
    for proof in run(arguments.criterion, trials=arguments.trials):
        failed += not proof.holds
        sys.stdout.write(
            f"{proof.case:<26}{proof.proof:<14}{proof.deviation:>10.1e}  "
            f"{LIMITS[proof.proof]:>7.0e}{'' if proof.holds else '  FAILED'}\n"
        )
    verdict = f"{failed} failed" if failed else "all hold"
    sys.stdout.write(f"{verdict} ({arguments.trials} random lattices each)\n")
    return 1 if failed else 0
