"""HMM topologies: which states a phone's HMM has, and how they are connected.

Every phone has a small left-to-right (or, for silence, partly ergodic) HMM. An emitting
state names a *pdf-class*, the position inside the phone that the decision tree is asked
about; the last state of an entry is final and emits nothing. In most topologies one
class serves all arcs of a state; topologies for lattice-free MMI give the self-loop a
class of its own (`<ForwardPdfClass>`, `<SelfLoopPdfClass>`).

Source: Kaldi `hmm/hmm-topology.{h,cc}` (class `HmmTopology`), `utils/gen_topo.pl`,
`steps/nnet3/chain/gen_topo.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from latflow.errors import UserError
from latflow.files import write_text
from latflow.kaldi.io import KaldiReader, KaldiWriter

NO_PDF = -1  # pdf-class of a state that emits nothing
_REMEDY = "fix the topology, or make the language directory again"


@dataclass(frozen=True)
class HmmState:
    """A state of a phone's HMM.

    Attributes:
        pdf_class: class of the pdf on arcs that leave the state; `NO_PDF` if it emits
            nothing.
        transitions: (next state, initial probability) of each arc out of the state.
        self_loop_pdf_class: class of the pdf on the self-loop; equal to `pdf_class`
            unless the topology keeps them apart.
    """

    pdf_class: int
    transitions: tuple[tuple[int, float], ...] = ()
    self_loop_pdf_class: int | None = None

    def __post_init__(self) -> None:
        if self.self_loop_pdf_class is None:
            object.__setattr__(self, "self_loop_pdf_class", self.pdf_class)

    @property
    def loop_pdf_class(self) -> int:
        """`self_loop_pdf_class` as a plain integer."""
        loop = self.self_loop_pdf_class
        return self.pdf_class if loop is None else loop


States = tuple[HmmState, ...]


class Topology:
    """The HMMs of all phones; phones with equal HMMs share an entry.

    Args:
        entries: (phones, states) of each entry, in file order.
        file: what an error message names.

    Raises:
        UserError: a phone is listed twice, or an entry is not a proper HMM.
    """

    def __init__(
        self,
        entries: Iterable[tuple[Sequence[int], Sequence[HmmState]]],
        *,
        file: str | Path | None = None,
    ) -> None:
        self.entries: list[States] = []
        self._entry_of: dict[int, int] = {}
        for phones, states in entries:
            if not phones:
                _refuse("an entry has no phones", file)
            for phone in phones:
                if phone <= 0:
                    _refuse(f"phone {phone} is not positive", file)
                if phone in self._entry_of:
                    _refuse(f"phone {phone} is in two entries", file)
                self._entry_of[phone] = len(self.entries)
            fault = fault_of(states)
            if fault:
                _refuse(f"the entry of phone {phones[0]}: {fault}", file)
            self.entries.append(tuple(states))
        if not self.entries:
            _refuse("the topology has no entries", file)

    @property
    def phones(self) -> tuple[int, ...]:
        """All phones, sorted."""
        return tuple(sorted(self._entry_of))

    @property
    def is_hmm(self) -> bool:
        """True if no state keeps a class of its own for its self-loop."""
        return all(
            state.pdf_class == state.loop_pdf_class
            for states in self.entries
            for state in states
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Topology)
            and self.entries == other.entries
            and self._entry_of == other._entry_of
        )

    __hash__ = None  # type: ignore[assignment]

    def states(self, phone: int) -> States:
        """Return the states of a phone's HMM; the last one is final, without arcs.

        Raises:
            UserError: the topology has no such phone.
        """
        entry = self._entry_of.get(phone)
        if entry is None:
            raise UserError(f"phone {phone} is not in the topology", remedy=_REMEDY)
        return self.entries[entry]

    def num_pdf_classes(self, phone: int) -> int:
        """Return the number of pdf-classes of a phone: 3 for a three-state HMM."""
        states = self.states(phone)
        return 1 + max(max(s.pdf_class, s.loop_pdf_class) for s in states)

    def pdf_class_counts(self) -> dict[int, int]:
        """Return the number of pdf-classes of every phone."""
        return {phone: self.num_pdf_classes(phone) for phone in self.phones}

    def min_duration(self, phone: int) -> int:
        """Return the least number of frames of a phone (its shortest path's states)."""
        states = self.states(phone)
        distance = {0: 0}
        queue = [0]
        while queue:
            state = queue.pop(0)
            cost = 0 if states[state].pdf_class == NO_PDF else 1
            for next_state, _ in states[state].transitions:
                if distance[state] + cost < distance.get(next_state, len(states) + 1):
                    distance[next_state] = distance[state] + cost
                    queue.append(next_state)
        return distance[len(states) - 1]

    # -- making ---------------------------------------------------------------------

    @classmethod
    def standard(
        cls,
        nonsilence: Sequence[int],
        silence: Sequence[int],
        num_nonsilence_states: int = 3,
        num_silence_states: int = 5,
    ) -> Topology:
        """Return left-to-right HMMs for speech, and partly ergodic ones for silence.

        A speech state stays with probability 0.75. In silence the first state may go to
        any but the last emitting state, the inner ones to any but the first, all with
        equal probability, and the last one stays with 0.75; with one silence state only
        the latter remains.

        Source: Kaldi `utils/gen_topo.pl`.
        """
        speech = _left_to_right(num_nonsilence_states)
        entries = [(sorted(nonsilence), speech)] if nonsilence else []
        if silence:
            entries.append((sorted(silence), _ergodic(num_silence_states)))
        return cls(entries)

    # -- files ----------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read `lang/topo`."""
        with KaldiReader.open(path) as reader:
            return cls.read(reader, file=path)

    def save(self, path: str | Path) -> None:
        """Write `lang/topo`: text, laid out as `gen_topo.pl` does."""
        lines = ["<Topology>"]
        for index, states in enumerate(self.entries):
            phones = " ".join(str(p) for p in self._phones_of(index))
            lines += ["<TopologyEntry>", "<ForPhones>", phones, "</ForPhones>"]
            lines += [_state_line(number, s) for number, s in enumerate(states)]
            lines.append("</TopologyEntry>")
        lines.append("</Topology>")
        write_text(path, "\n".join(lines) + "\n")

    def _phones_of(self, index: int) -> list[int]:
        return [phone for phone in self.phones if self._entry_of[phone] == index]

    @classmethod
    def read(cls, reader: KaldiReader, *, file: str | Path | None = None) -> Topology:
        """Read a topology, text or binary, where the reader stands.

        Raises:
            UserError: it is truncated, garbled or no proper topology.
        """
        reader.expect("<Topology>")
        if not reader.binary:
            return cls(_read_text_entries(reader), file=file)
        entries = _read_binary_entries(reader)
        reader.expect("</Topology>")
        return cls(entries, file=file)

    def write(self, writer: KaldiWriter) -> None:
        """Write the topology as Kaldi does inside models, text or binary."""
        writer.write_token("<Topology>")
        if writer.binary:
            self._write_binary(writer)
        else:
            self._write_text(writer)
        writer.write_token("</Topology>")
        writer.end_line()

    def _write_text(self, writer: KaldiWriter) -> None:
        writer.end_line()
        for index, states in enumerate(self.entries):
            _write_line(writer, "<TopologyEntry>")
            _write_line(writer, "<ForPhones>")
            _write_line(writer, *self._phones_of(index))
            _write_line(writer, "</ForPhones>")
            for number, state in enumerate(states):
                _write_text_state(writer, number, state, is_hmm=self.is_hmm)
            _write_line(writer, "</TopologyEntry>")

    def _write_binary(self, writer: KaldiWriter) -> None:
        phones = self.phones
        writer.write_int_vector(phones)
        writer.write_int_vector(
            [self._entry_of.get(phone, -1) for phone in range(phones[-1] + 1)]
        )
        if not self.is_hmm:
            writer.write_int32(-1)
        writer.write_int32(len(self.entries))
        for states in self.entries:
            writer.write_int32(len(states))
            for state in states:
                writer.write_int32(state.pdf_class)
                if not self.is_hmm:
                    writer.write_int32(state.loop_pdf_class)
                writer.write_int32(len(state.transitions))
                for next_state, probability in state.transitions:
                    writer.write_int32(next_state)
                    writer.write_float32(probability)


def chain_topology(phones: Sequence[int]) -> Topology:
    """Return the topology of lattice-free MMI: one state, left after any frame.

    The first frame of a phone has pdf-class 0, all that follow have class 1.

    Source: Kaldi `steps/nnet3/chain/gen_topo.py`.
    """
    state = HmmState(0, ((0, 0.5), (1, 0.5)), self_loop_pdf_class=1)
    return Topology([(sorted(phones), (state, HmmState(NO_PDF)))])


def ctc_topology(labels: Sequence[int], blanks: Sequence[int]) -> Topology:
    """Return the topology of connectionist temporal classification (CTC).

    A label lasts one frame or more (pdf-class 0), and blanks may follow it (class 1).
    Phones that are not labels are blanks of one frame or more. Probabilities are even;
    graphs of CTC leave them out.

    Args:
        labels: phones that the network predicts.
        blanks: phones that it does not: silence.
    """
    third = 1.0 / 3.0
    label = (
        HmmState(0, ((0, third), (1, third), (2, third))),
        HmmState(1, ((1, 0.5), (2, 0.5))),
        HmmState(NO_PDF),
    )
    blank = (HmmState(0, ((0, 0.5), (1, 0.5))), HmmState(NO_PDF))
    return Topology([(sorted(labels), label), (sorted(blanks), blank)])


def _refuse(what: str, file: str | Path | None) -> NoReturn:
    raise UserError(what, file=file, remedy=_REMEDY)


def fault_of(states: Sequence[HmmState]) -> str | None:
    """Return what keeps these states from being an HMM, or None.

    Source: Kaldi `hmm/hmm-topology.cc` (`HmmTopology::Check`).
    """
    if len(states) < 2:
        return "it needs an emitting and a final state"
    if states[-1].transitions or states[-1].pdf_class != NO_PDF:
        return "the last state must neither emit nor have transitions"
    entered = {next_state for state in states for next_state, _ in state.transitions}
    missing = set(range(1, len(states))) - entered
    if missing:
        return f"no transition leads to state {min(missing)}"
    for number, state in enumerate(states[:-1]):
        fault = _fault_of_state(number, state, len(states))
        if fault:
            return f"state {number}: {fault}"
    seen = {c for s in states for c in (s.pdf_class, s.loop_pdf_class)} - {NO_PDF}
    if seen != set(range(len(seen))):
        return "pdf-classes must be 0, 1, 2 and so on without a gap"
    return None


def _fault_of_state(number: int, state: HmmState, num_states: int) -> str | None:
    """Return the same for one state that is not the last one."""
    targets = [next_state for next_state, _ in state.transitions]
    emits = state.pdf_class != NO_PDF
    total = sum(probability for _, probability in state.transitions)
    checks: Mapping[str, bool] = {
        "it has no transitions": not targets,
        "a transition to a state that is not there": any(
            not 0 <= target < num_states for target in targets
        ),
        "two transitions to one state": len(set(targets)) < len(targets),
        "a probability that is not positive": any(p <= 0 for _, p in state.transitions),
        f"probabilities that sum to {total:g}": abs(total - 1.0) > 0.01,
        "a self-loop, though it emits nothing": number in targets and not emits,
        "it leads to the final state, though it emits nothing": not emits
        and num_states - 1 in targets,
        "one of its pdf-classes is missing": emits != (state.loop_pdf_class != NO_PDF),
    }
    return next((fault for fault, is_so in checks.items() if is_so), None)


def _left_to_right(num_states: int) -> States:
    """Return states that stay with probability 0.75 or step to the next."""
    inner = [HmmState(n, ((n, 0.75), (n + 1, 0.25))) for n in range(num_states)]
    return (*inner, HmmState(NO_PDF))


def _ergodic(num_states: int) -> States:
    """Return states of silence: inner ones freely connected, a first and a last one."""
    if num_states == 1:
        return _left_to_right(1)
    share = 1.0 / (num_states - 1)
    last = num_states - 1
    states = [HmmState(0, tuple((n, share) for n in range(num_states - 1)))]
    states += [
        HmmState(number, tuple((n, share) for n in range(1, num_states)))
        for number in range(1, last)
    ]
    states.append(HmmState(last, ((last, 0.75), (num_states, 0.25))))
    return (*states, HmmState(NO_PDF))


def _state_line(number: int, state: HmmState) -> str:
    """Return one `<State>` line of `lang/topo`."""
    words = ["<State>", str(number)]
    if state.pdf_class != NO_PDF and state.pdf_class == state.loop_pdf_class:
        words += ["<PdfClass>", str(state.pdf_class)]
    elif state.pdf_class != NO_PDF:
        words += ["<ForwardPdfClass>", str(state.pdf_class)]
        words += ["<SelfLoopPdfClass>", str(state.loop_pdf_class)]
    for next_state, probability in state.transitions:
        words += ["<Transition>", str(next_state), f"{probability:.15g}"]
    return " ".join([*words, "</State>"])


def _write_line(writer: KaldiWriter, *words: object) -> None:
    for word in words:
        writer.write_token(str(word))
    writer.end_line()


def _write_text_state(
    writer: KaldiWriter, number: int, state: HmmState, *, is_hmm: bool
) -> None:
    """Return one `<State>` line as Kaldi writes it inside a model."""
    writer.write_token("<State>")
    writer.write_int32(number)
    if state.pdf_class != NO_PDF and is_hmm:
        writer.write_token("<PdfClass>")
        writer.write_int32(state.pdf_class)
    elif state.pdf_class != NO_PDF:
        writer.write_token("<ForwardPdfClass>")
        writer.write_int32(state.pdf_class)
        writer.write_token("<SelfLoopPdfClass>")
        writer.write_int32(state.loop_pdf_class)
    for next_state, probability in state.transitions:
        writer.write_token("<Transition>")
        writer.write_int32(next_state)
        writer.write_float32(probability)
    _write_line(writer, "</State>")


def _read_text_entries(
    reader: KaldiReader,
) -> list[tuple[list[int], list[HmmState]]]:
    """Return the entries of a text topology, up to and including `</Topology>`."""
    entries = []
    while reader.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        reader.expect("<ForPhones>")
        phones = []
        while reader.peek_token() != "</ForPhones>":
            phones.append(reader.int32())
        reader.token()
        states = []
        while reader.expect("<State>", "</TopologyEntry>") == "<State>":
            number = reader.int32()
            if number != len(states):
                reader.fail(f"state {number} where state {len(states)} is expected")
            states.append(_read_text_state(reader))
        entries.append((phones, states))
    return entries


def _read_text_state(reader: KaldiReader) -> HmmState:
    """Return the rest of a `<State>` line, after its number."""
    pdf_class = loop_class = NO_PDF
    kind = reader.peek_token()
    if kind in {"<PdfClass>", "<ForwardPdfClass>"}:
        reader.token()
        pdf_class = loop_class = reader.int32()
    if kind == "<ForwardPdfClass>":
        reader.expect("<SelfLoopPdfClass>")
        loop_class = reader.int32()
    transitions = []
    while reader.expect("<Transition>", "</State>") == "<Transition>":
        transitions.append((reader.int32(), reader.float32()))
    return HmmState(pdf_class, tuple(transitions), loop_class)


def _read_binary_entries(
    reader: KaldiReader,
) -> list[tuple[list[int], list[HmmState]]]:
    """Return the entries of a binary topology, up to `</Topology>`."""
    phones = reader.int_vector().tolist()
    entry_of = reader.int_vector().tolist()
    if any(not 0 < phone < len(entry_of) for phone in phones):
        reader.fail("a phone that has no entry")
    count = reader.int32()
    is_hmm = count >= 0
    if not is_hmm:
        count = reader.int32()
    entries = []
    for index in range(count):
        states = [
            _read_binary_state(reader, is_hmm=is_hmm) for _ in range(reader.int32())
        ]
        entries.append(([p for p in phones if entry_of[p] == index], states))
    return entries


def _read_binary_state(reader: KaldiReader, *, is_hmm: bool) -> HmmState:
    pdf_class = reader.int32()
    loop_class = pdf_class if is_hmm else reader.int32()
    transitions = tuple(
        (reader.int32(), reader.float32()) for _ in range(reader.int32())
    )
    return HmmState(pdf_class, transitions, loop_class)
