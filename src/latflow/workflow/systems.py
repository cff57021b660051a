"""Systems of an experiment: GMMs and networks, and which of them build on which.

Public: `Systems`, `name_of_import`, `unless_set`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from latflow.criteria.options import PathOptions, TeacherOptions
from latflow.gmm.options import MonoOptions, SatOptions, SystemOptions
from latflow.nnet.described import (
    OutputLoss,
    described_layers,
    described_outputs,
    described_parts,
    described_sample_rates,
    described_subsampling,
    fused_layer,
)
from latflow.options import Options
from latflow.sequence.options import SequenceSystemOptions
from latflow.training.data_options import UtteranceOptions
from latflow.training.options import (
    AttentionSystemOptions,
    CeSystemOptions,
    CtcSystemOptions,
    LfmmiSystemOptions,
)
from latflow.workflow.experiment import Experiment, NetworkSystemOptions
from latflow.workflow.settings import workflow_folder

Settings = TypeVar("Settings", bound=Options)


@dataclass(frozen=True)
class Systems:
    """The systems of an experiment.

    Attributes:
        options: complete and typed.
    """

    options: Experiment

    @property
    def systems(self) -> dict[str, SystemOptions | None]:
        """GMM systems, in the order of the recipe; first an imported one, with None."""
        imported = self.imported_system
        first = {} if imported is None else {imported: None}
        return {**first, **self.options.gmm.systems}

    @property
    def imported_system(self) -> str | None:
        """Name of the system that comes from a directory of Kaldi's, if one does."""
        folder = self.options.gmm.import_
        return None if folder is None else name_of_import(folder)

    @property
    def is_import_adapted(self) -> bool:
        """Return whether the imported system adapts to speakers."""
        folder = self.options.gmm.import_
        return folder is not None and Path(folder, "final.alimdl").is_file()

    def imported_files(self, *patterns: str) -> list[str]:
        """Return files of the imported system's folder; none if none is imported."""
        folder = self.options.gmm.import_
        found = [p for name in patterns for p in Path(folder or "").glob(name)]
        return sorted(map(str, found)) if folder else []

    def systems_of(self, *kinds: str) -> list[str]:
        """Return names of the systems of some types (`mono`, `deltas`, ...)."""
        systems = self.options.gmm.systems.items()
        return [name for name, system in systems if system.type in kinds]

    def is_adapted(self, system: str) -> bool:
        """Return whether a system works on features adapted to each speaker."""
        if system == self.imported_system:
            return self.is_import_adapted
        return isinstance(self.systems[system], SatOptions)

    @property
    def adapted_systems(self) -> list[str]:
        """Names of the systems that adapt to speakers."""
        return [system for system in self.systems if self.is_adapted(system)]

    @property
    def plain_systems(self) -> list[str]:
        """Names of the systems that treat all speakers alike."""
        return [system for system in self.systems if not self.is_adapted(system)]

    def alignments_of(self, system: str) -> str:
        """Return the GMM system whose alignments a GMM system is trained on."""
        options = self.options.gmm.systems[system]
        assert not isinstance(options, MonoOptions)
        return options.alignments

    def lineage_of(self, system: str) -> list[str]:
        """Return a system and all that it is built on, each once.

        These are the systems of its alignments, features and lexicon, its parent and
        its teacher, and those that these are built on.
        """
        found = [system]
        for name in found:  # grows meanwhile
            found += [each for each in self._built_on(name) if each not in found]
        return found

    def _built_on(self, system: str) -> list[str]:
        """Return the systems that a system names."""
        if self.is_network(system):
            network = self.networks[system]
            if isinstance(network, SequenceSystemOptions):
                used = [network.parent, self.teacher_of(system)]
            else:
                reads = self.streams_read(system)
                used = [network.alignments, *reads, network.parent]
        else:
            options = self.systems[system]
            used = [getattr(options, key, None) for key in ("alignments", "lexicon")]
        known = self.decoded_systems
        return [name for name in dict.fromkeys(used) if name in known]

    @property
    def networks(self) -> dict[str, NetworkSystemOptions]:
        """Systems with a network, in the order of the recipe."""
        return self.options.nnet.systems

    def networks_of(self, *kinds: str) -> list[str]:
        """Return names of the networks of types (`ce`, `ctc`, ...)."""
        return [name for name, n in self.networks.items() if n.type in kinds]

    @property
    def decoded_systems(self) -> list[str]:
        """All systems that decode: GMMs first, then networks."""
        return [*self.systems, *self.networks]

    @property
    def swept_systems(self) -> list[str]:
        """Systems that decode dev at several beams: the last with a graph, or none."""
        last = [n for n in self.decoded_systems if not self.has_decoder(n)][-1:]
        return last if self.options.decode.beam_sweep else []

    @property
    def served_systems(self) -> list[str]:
        """Packaged systems that recognize: all but adapted GMMs, which only align."""
        packaged = self.options.package.systems
        return [n for n in packaged if self.is_network(n) or not self.is_adapted(n)]

    def is_network(self, system: str) -> bool:
        """Return whether a system is a network's."""
        return system in self.networks

    def seed_of(self, system: str) -> str:
        """Return the network that a sequence-trained one goes back to.

        Else the system.
        """
        network = self.networks.get(system)
        is_seed = not isinstance(network, SequenceSystemOptions)
        return system if is_seed else self.seed_of(network.parent)

    def features_learnt(self, network: str) -> list[str]:
        """Return the streams that outputs of a network learn, in their order."""
        losses = self.outputs_of(network).values()
        learnt = dict.fromkeys(o.target for o in losses if o.name == "mse")
        simulated = self.simulated_targets(network)
        return [name for name in learnt if name not in simulated]

    def simulated_targets(self, network: str) -> list[str]:
        """Return what outputs may learn of a network's simulated data, by name."""
        simulation = self.networks[network].data.simulation
        return [] if simulation is None else list(simulation.targets)

    def _seed_options(
        self, network: str
    ) -> (
        AttentionSystemOptions | CeSystemOptions | CtcSystemOptions | LfmmiSystemOptions
    ):
        """Return the options of the network that a network goes back to."""
        options = self.networks[self.seed_of(network)]
        assert not isinstance(options, SequenceSystemOptions)
        return options

    def gmm_behind(self, system: str) -> str | None:
        """Return the GMM system that a system goes back to; itself, if it is one.

        None where a flat start is at the beginning.
        """
        if not self.is_network(system):
            return system
        aligner = self._seed_options(system).alignments
        return None if aligner is None else self.gmm_behind(aligner)

    def lang_folder(self, system: str) -> str:
        """Name of the language directory that a system is trained and used with."""
        behind = self.gmm_behind(system)
        options = None if behind is None else self.systems[behind]
        source = getattr(options, "lexicon", None)  # monophones have none
        return "lang" if source is None else f"lang_{source}"

    def aligner_of(self, network: str) -> str:
        """Return the system whose alignments a network is trained on.

        Of a sequence-trained network they are those of its seed, or made by the seed,
        where that has a tree of its own.
        """
        assert self.has_aligner(network), f"{network} needs no alignments"
        seed = self.seed_of(network)
        if seed != network and self.has_own_tree(seed):
            return seed
        aligner = self._seed_options(network).alignments
        assert aligner is not None
        return aligner

    def has_aligner(self, network: str) -> bool:
        """Return whether a network is trained on alignments."""
        is_seed = self.seed_of(network) == network
        return not is_seed or self._seed_options(network).alignments is not None

    def learns_by_ctc(self, network: str) -> bool:
        """Return whether an output of a network learns from transcripts, by CTC.

        False where its description is not there to be read yet.
        """
        options = self.networks[network]
        if isinstance(options, CtcSystemOptions):
            return True
        losses = {loss.name for loss in self.outputs_of(network).values()}
        return isinstance(options, CeSystemOptions) and "ctc" in losses

    def has_decoder(self, system: str) -> bool:
        """Return whether a system is a decoder with attention, which has no graph."""
        return isinstance(self.networks.get(system), AttentionSystemOptions)

    def attention_system(self, network: str) -> AttentionSystemOptions:
        """Return the options of a decoder with attention."""
        options = self.networks[network]
        assert isinstance(options, AttentionSystemOptions)
        return options

    def transcripts_folder(self, network: str) -> str | None:
        """Return the folder of what a network learns of transcripts; None if nothing.

        Graphs of CTC, or the units of a decoder.
        """
        if self.has_decoder(network):
            return f"units/{network}"
        return f"ctc/{network}" if self.learns_by_ctc(network) else None

    def stream_of(self, system: str) -> str | None:
        """Return the features that a network reads: a stream's name, or a GMM system's.

        None stands for the frames that GMM systems start from.
        """
        is_network = self.is_network(system)
        return self._seed_options(system).features if is_network else None

    def streams_read(self, system: str) -> tuple[str, ...]:
        """Return the features that a network reads, those side by side one by one.

        Empty where it reads the frames that GMM systems start from.
        """
        stream = self.stream_of(system)
        if stream is None:
            return ()
        pasted = self.options.nnet.pasted.get(stream)
        return (stream,) if pasted is None else pasted.features

    def timed_as(self, system: str) -> str | None:
        """Return the features whose frames have the times of those that a system reads.

        Those below i-vectors, the first of several side by side; None for those of GMM
        systems.
        """
        first = next(iter(self.streams_read(system)), None)
        ivectors = self.options.nnet.ivectors.get(first or "")
        return first if ivectors is None else ivectors.features

    def labelled_stream(self, network: str) -> str | None:
        """Return the HDF5 files, read as features, that have labels too, or None."""
        hdf5 = self.options.nnet.hdf5
        read = (name for name in self.streams_read(network) if name in hdf5)
        return next((name for name in read if hdf5[name].targets), None)

    def targets_given(self, network: str) -> tuple[str, ...]:
        """Return the targets whose labels lie in HDF5 files with the features."""
        name = self.labelled_stream(network)
        return () if name is None else self.options.nnet.hdf5[name].targets

    def learns_alignments(self, network: str) -> bool:
        """Return whether outputs of a network learn labels of alignments."""
        losses = self.outputs_of(network).values()
        learnt = {loss.target for loss in losses if loss.name == "ce"}
        are_given = bool(learnt) and learnt <= {*self.targets_given(network)}
        return self.has_aligner(network) and not are_given

    def training_set_of(self, network: str) -> str:
        """Return the set that a network is trained on."""
        options = self.networks[network]
        if isinstance(options, SequenceSystemOptions):
            return options.training_set or self.training_set_of(options.parent)
        return options.training_set

    def subsampling_of(self, system: str) -> int:
        """Return the frames of the features for one of a system's scores.

        1 where a network's description is not there to be read yet.
        """
        if not self.is_network(system):
            return 1
        found = self.description_of(system)
        return 1 if found is None else described_subsampling(found)

    def describes_network(self, system: str) -> bool:
        """Return whether a network's description is there to be read."""
        return self.description_of(system) is not None

    def outputs_of(self, network: str) -> dict[str, OutputLoss]:
        """Return the losses of a network's outputs, that which is decoded first.

        Empty where its description is not there to be read yet.
        """
        found = self.description_of(network)
        return {} if found is None else described_outputs(found)

    def layers_of(self, network: str) -> list[str]:
        """Return the names of a network's layers that share no other's parameters.

        Empty where its description is not there to be read yet.
        """
        found, seed = self.description_of(network), self.seed_of(network)
        if found is None:
            return []
        networks = 1 if network == seed else self.networks[seed].training.ensemble
        if networks == 1:
            return described_layers(found)
        if not (outputs := [*self.outputs_of(network)]):
            return []
        output, numbers = outputs[0], range(1, networks + 1)
        hidden = [x for x in described_layers(found, behind=output) if x != output]
        fused = [fused_layer(number, name) for number in numbers for name in hidden]
        return [*fused, output]

    def sample_rates_of(self, network: str) -> dict[str, int]:
        """Return the sample rates that layers of a network are for, Hz, by layer.

        Empty where its description is not there to be read yet.
        """
        found = self.description_of(network)
        return {} if found is None else described_sample_rates(found)

    def parts_of(self, network: str) -> dict[str, str]:
        """Return the features that layers take of those side by side, by layer.

        Empty where its description is not there to be read yet.
        """
        found = self.description_of(network)
        return {} if found is None else described_parts(found)

    def description_of(self, system: str) -> Path | None:
        """Return the file that describes a network, where it is there already."""
        path = Path(self._seed_options(system).network)
        places = (path, workflow_folder() / path)
        return next((place for place in places if place.is_file()), None)

    def has_own_tree(self, system: str) -> bool:
        """Return whether a system is a network with a tree of its own.

        So are those of LF-MMI and CTC; one with a decoder has the labels of CTC, for
        the phones of what it finds.
        """
        kinds = {"attention", "ctc", "lfmmi"}
        return self.is_network(system) and self.networks[system].type in kinds

    def is_flat_start(self, network: str) -> bool:
        """Return whether LF-MMI trains a network from transcripts alone."""
        options = self.networks.get(network)
        is_own = isinstance(options, LfmmiSystemOptions)
        return is_own and options.alignments is None

    def lattice_free_networks(self, *, flat_start: bool) -> list[str]:
        """Return names of networks of LF-MMI that nothing aligns for, or the others."""
        names = self.networks_of("lfmmi")
        return [name for name in names if self.is_flat_start(name) is flat_start]

    def tree_owner(self, system: str) -> str:
        """Return the system whose tree and graphs a system works with."""
        if not self.is_network(system) or self.has_own_tree(system):
            return system
        return self.tree_owner(self.aligner_of(system))

    @property
    def graph_owners(self) -> list[str]:
        """Names of the systems that have a decoding graph: GMMs, then networks."""
        own = [name for name in self.networks if self.has_own_tree(name)]
        return [*self.systems, *(name for name in own if not self.has_decoder(name))]

    def tree_folder(self, system: str) -> str:
        """Return the folder with `tree` and `final.mdl` that a system works with."""
        owner = self.tree_owner(system)
        return f"{'chain' if self.is_network(owner) else 'gmm'}/{owner}"

    def chain_system(self, network: str) -> LfmmiSystemOptions:
        """Return the options of a network that LF-MMI trains.

        Those that a recipe does not set are others where it starts flat.
        """
        options = self.networks[network]
        assert isinstance(options, LfmmiSystemOptions)
        return _flat_start(options) if self.is_flat_start(network) else options

    def sequence_system(self, network: str) -> SequenceSystemOptions:
        """Return the options of a sequence-trained network.

        On top of LF-MMI acoustic scales that the recipe does not set are 1.
        """
        options = self.networks[network]
        assert isinstance(options, SequenceSystemOptions)
        is_full = self.has_full_scale(network)
        return _at_full_scale(options) if is_full else options

    def has_full_scale(self, system: str) -> bool:
        """Return whether a network is searched with an acoustic scale of 1.

        So are those that learnt whole sequences from the start: by LF-MMI or CTC.
        """
        return self.has_own_tree(self.seed_of(system))

    def teacher_of(self, system: str) -> str | None:
        """Return the network that a sequence-trained one learns from, or None."""
        criterion = self.sequence_system(system).criterion
        return criterion.teacher if isinstance(criterion, TeacherOptions) else None

    def criterion_files_of(self, system: str) -> list[str]:
        """Return the user's own files that the criterion of a system has."""
        criterion = self.sequence_system(system).criterion
        return [str(path) for path in criterion.files]

    def aligns_on_the_fly(self, system: str) -> bool:
        """Return whether a sequence-trained network aligns its training data anew."""
        return self.sequence_system(system).sequence.alignments.source != "static"


def unless_set(options: Settings, **defaults: Any) -> Settings:
    """Return options with other values for those that the recipe does not set."""
    given = options.model_fields_set
    return options.replace(**{k: v for k, v in defaults.items() if k not in given})


def name_of_import(folder: str | Path) -> str:
    """Return a system's name from its folder's: lower case, others become `_`."""
    name = Path(os.path.abspath(folder)).name.lower()
    return re.sub(r"[^a-z0-9_]", "_", name).lstrip("_") or "imported"


def _at_full_scale(options: SequenceSystemOptions) -> SequenceSystemOptions:
    """Return options with acoustic scales of 1, but for those that the recipe sets."""
    criterion, sequence = options.criterion, options.sequence
    if isinstance(criterion, PathOptions):
        is_teacher = isinstance(criterion, TeacherOptions)
        more = {"teacher_scale": 1.0} if is_teacher else {}
        criterion = unless_set(criterion, acoustic_scale=1.0, **more)
    searches = {
        name: unless_set(getattr(sequence, name), acoustic_scale=1.0)
        for name in ("lattices", "alignments", "dev_search")
    }
    return options.replace(criterion=criterion, sequence=sequence.replace(**searches))


def _flat_start(options: LfmmiSystemOptions) -> LfmmiSystemOptions:
    """Return options of a flat start, but for those that the recipe sets (Kaldi's)."""
    return options.replace(
        tree=unless_set(options.tree, context_width=1),
        criterion=unless_set(options.criterion, l2=5e-5),
        data=unless_set(options.data, sequences=UtteranceOptions()),
    )
