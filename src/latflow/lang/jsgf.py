"""Grammars in the Java Speech Grammar Format (JSGF), as acceptors of words.

    #JSGF V1.0;
    grammar lamps;
    public <command> = [please] turn (on | off) <lamp>+;
    <lamp> = /3/ kitchen | /1/ hall;

An utterance is what one of the public rules can become. Alternatives are equally
probable, or as their weights say; what may be left out or said again is, with
probability 1/2. Tags have no meaning here. A rule may end with itself (right
recursion); any other recursion is refused, since no finite acceptor has it. `<GARBAGE>`
is any number of words that the lexicon lacks, as in SRGS.

Source: JSpeech Grammar Format, W3C Note 2000; SRGS 1.0, section 2.2.3 (special rules).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.fst.openfst import ARC

HEADER = "#JSGF"
_REMEDY = 'the format is described in docs/serving.md, "Grammars"'
_MAX_DEPTH = 100  # of brackets, and of rules in rules
_MAX_NESTED = 300  # of both together, where rules are put in for their names
_MAX_STATES = 200_000
_HALF = math.log(2.0)
# Some tools write no version, no blank before it, no semicolon, or a small v.
_FIRST_LINE = re.compile(r"#JSGF(\s*[Vv]1\.0(?![\w.])[^;\n]*|(?!\w))\s*;?")
_COMMENTS = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKENS = re.compile(
    r"""(?:
      "(?P<quoted>(?:\\.|[^"\\])*)"
    | <(?P<rule>[^<>]*)>
    | \{(?P<tag>(?:\\.|[^}\\])*)\}
    | /(?P<weight>[^/\s]+)/
    | (?P<mark>[;=|*+()\[\]])
    | (?P<word>[^\s;=|*+<>()\[\]{}/"]+)
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


class GrammarError(UserError):
    """The text of a grammar is faulty; who read it from a file says which."""


@dataclass(frozen=True)
class _Words:
    """Words of the grammar as it spells them."""

    text: str


@dataclass(frozen=True)
class _Reference:
    """What a rule can become."""

    rule: str


@dataclass(frozen=True)
class _Sequence:
    """One part behind the other; none of them for `<NULL>`."""

    parts: tuple[_Expansion, ...]


@dataclass(frozen=True)
class _Choice:
    """One of some alternatives, each with its weight; none of them for `<VOID>`."""

    alternatives: tuple[tuple[float, _Expansion], ...]


@dataclass(frozen=True)
class _Repeated:
    """A part any number of times, once at least or not."""

    part: _Expansion
    at_least_once: bool


_Expansion = _Words | _Reference | _Sequence | _Choice | _Repeated
_NULL, _VOID = _Sequence(()), _Choice(())


def read_jsgf(
    text: str, words_of: Callable[[str], list[int]], unknown: int | None
) -> Graph:
    """Read a grammar; it accepts the empty utterance, too.

    Args:
        text: of the file.
        words_of: gives the ids of the words of a text.
        unknown: the word that `<GARBAGE>` is made of; None for none.

    Returns:
        An acceptor of words with epsilons, not deterministic; state 0 is the start.

    Raises:
        GrammarError: the text is no such grammar, has no public rule, names a rule that
            it lacks, is recursive other than at the end of a rule, or too large; or as
            `words_of`.
    """
    rules, public = _Parser(text).rules()
    if not public:
        raise _fault("no rule is public", remedy="write `public <name> = ...;`")
    builder = _Builder(rules, words_of, unknown)
    return builder.build(_Choice(tuple((1.0, _Reference(name)) for name in public)))


def _fault(what: str, *, remedy: str = _REMEDY) -> GrammarError:
    return GrammarError(f"the JSGF grammar: {what}", remedy=remedy)


class _Parser:
    """Reads rules by recursive descent."""

    def __init__(self, text: str) -> None:
        text = re.sub("\r\n?", "\n", text)
        head = _FIRST_LINE.match(text, len(text) - len(text.lstrip("\ufeff \t\n")))
        if head is None:
            raise _fault("it does not begin with `#JSGF V1.0;`")
        first = text.count("\n", 0, head.end()) + 1
        found = list(_tokens(_COMMENTS.sub(_blank, text[head.end() :]), first))
        self._tokens = [token for _, token in found]
        self._lines = [line for line, _ in found]
        self._at, self._depth = 0, 0
        self._grammar = ""  # its name

    def rules(self) -> tuple[dict[str, _Expansion], list[str]]:
        """Return the rules by name, and the names of those that are public."""
        rules: dict[str, _Expansion] = {}
        public: list[str] = []
        self._skip_declarations()
        while self._kind != "end":
            is_public = self._take("word", "public")
            kind, name = self._tokens[self._at]
            if kind != "rule":
                raise self._fault(f"a rule is expected at {name!r}")
            if name in rules:
                raise self._fault(f"the rule <{name}> comes twice")
            self._next()
            self._require("=")
            rules[name] = self._choice()
            if self._kind != "end":  # where grammars for browsers often lack it
                self._require(";")
            if is_public:
                public.append(name)
        return rules, public

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += token[0] != "end"
        return token

    def _take(self, kind: str, value: str) -> bool:
        """Take a token if it is the next one."""
        is_next = self._tokens[self._at] == (kind, value)
        self._at += is_next
        return is_next

    def _require(self, mark: str) -> None:
        if not self._take("mark", mark):
            found = self._tokens[self._at][1] or "the end"
            raise self._fault(f"{mark!r} is missing before {found!r}")

    def _fault(self, what: str) -> GrammarError:
        """Return the error about the next token."""
        return _fault(f"line {self._lines[self._at]}: {what}")

    def _skip_declarations(self) -> None:
        """Skip the name of the grammar, and what it imports."""
        while self._tokens[self._at] in (("word", "grammar"), ("word", "import")):
            _, declared = self._next()
            if declared == "grammar":
                self._grammar = self._tokens[self._at][1]
            while self._kind not in {"mark", "end"}:
                self._next()
            self._take("mark", "*")  # all rules of a grammar
            self._require(";")

    def _own_name(self, rule: str) -> str:
        """Return the name of a rule without that of this grammar before it."""
        for grammar in (self._grammar, self._grammar.rpartition(".")[2]):
            if grammar and rule.startswith(f"{grammar}."):
                return rule.removeprefix(f"{grammar}.")
        return rule

    def _choice(self) -> _Expansion:
        """Read alternatives."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._fault(f"brackets are nested more than {_MAX_DEPTH} deep")
        found = [self._weighted()]
        while self._take("mark", "|"):
            found.append(self._weighted())
        self._depth -= 1
        return found[0][1] if len(found) == 1 else _Choice(tuple(found))

    def _weighted(self) -> tuple[float, _Expansion]:
        """Read a sequence, maybe with a weight before it."""
        weight = 1.0
        if self._kind == "weight":
            text = self._tokens[self._at][1]
            try:
                weight = float(text)
            except ValueError:
                weight = -1.0
            if not 0.0 <= weight < math.inf:
                raise self._fault(f"{text!r} is not a weight")
            self._next()
        parts: list[_Expansion] = []
        while (part := self._part()) is not None:
            parts.append(part)
        return weight, parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _part(self) -> _Expansion | None:
        """Read a word, a rule or a bracket, with what stands behind it."""
        kind, value = self._tokens[self._at]
        if kind in {"word", "quoted"}:
            self._next()
            found: _Expansion = _Words(re.sub(r"\\(.)", r"\1", value))
        elif kind == "rule":
            self._next()
            name = self._own_name(value)
            found = {"NULL": _NULL, "VOID": _VOID}.get(value) or _Reference(name)
        elif self._take("mark", "("):
            found = self._choice()
            self._require(")")
        elif self._take("mark", "["):
            found = _Choice(((1.0, self._choice()), (1.0, _NULL)))
            self._require("]")
        else:
            return None
        while self._kind == "tag" or self._tokens[self._at][1] in {"*", "+"}:
            kind, value = self._next()
            if kind == "mark":
                found = _repeated(found, at_least_once=value == "+")
        return found


def _repeated(part: _Expansion, *, at_least_once: bool) -> _Repeated:
    """Return what is repeated; what is so already is not nested."""
    if isinstance(part, _Repeated):
        return _Repeated(part.part, part.at_least_once and at_least_once)
    return _Repeated(part, at_least_once)


def _blank(comment: re.Match[str]) -> str:
    """Return the ends of lines of a comment, or what looks like one in quotes."""
    return comment[1] or " " + "\n" * comment[0].count("\n")


def _tokens(text: str, line: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield line, kind and text of each token; at last that of the end.

    Args:
        text: without comments.
        line: its number in the file.
    """
    at = 0
    while True:
        blanks = at
        while blanks < len(text) and text[blanks].isspace():
            blanks += 1
        line += text.count("\n", at, blanks)
        match = _TOKENS.match(text, blanks)
        if match is None:
            near = text[blanks:].split(maxsplit=1)[0][:20]
            raise _fault(f"line {line}: it makes no sense at {near!r}")
        kind = str(match.lastgroup)
        value = match[kind].strip() if kind == "rule" else match[kind]
        yield line, (kind, value)
        line += match[0].count("\n")
        if kind == "end":
            return
        at = match.end()


def _plain_text(expansion: _Expansion) -> str | None:
    """Return the words of an expansion that is nothing else, as a text."""
    if isinstance(expansion, _Words):
        return expansion.text
    if isinstance(expansion, _Sequence):
        parts = [part.text for part in expansion.parts if isinstance(part, _Words)]
        return " ".join(parts) if len(parts) == len(expansion.parts) else None
    return None


@dataclass
class _Builder:
    """Makes an acceptor of expansions.

    Attributes:
        rules: by name.
        words_of: gives ids.
        unknown: see `read_jsgf`.
    """

    rules: dict[str, _Expansion]
    words_of: Callable[[str], list[int]]
    unknown: int | None
    _arcs: list[tuple[int, int, float, int]] = field(default_factory=list)
    _num_states: int = 2  # the start and the end
    # Where a rule begins that another state follows.
    _begin: dict[tuple[str, int], int] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _nested: int = 0  # expansions that are being added

    def build(self, top: _Expansion) -> Graph:
        """Return the acceptor of an expansion, and of nothing."""
        begin = self._state()
        self._arcs.append((0, 0, _HALF, begin))
        self._arcs.append((0, 0, _HALF, 1))
        self._add(top, begin, 1)
        rows = [(word, word, cost, to) for _, word, cost, to in self._arcs]
        source = np.array([arc[0] for arc in self._arcs])
        final = np.full(self._num_states, np.inf, np.float32)
        final[1] = 0.0
        return Graph.from_arc_list(0, source, np.array(rows, ARC), final)

    def _state(self) -> int:
        if self._num_states >= _MAX_STATES:
            raise _fault(
                f"it becomes larger than {_MAX_STATES} states",
                remedy="name rules in fewer places",
            )
        self._num_states += 1
        return self._num_states - 1

    def _add(self, expansion: _Expansion, begin: int, end: int) -> None:
        """Add an expansion between two states."""
        if self._nested >= _MAX_NESTED:
            raise _fault(f"rules and brackets are nested more than {_MAX_NESTED} deep")
        self._nested += 1
        self._add_kind(expansion, begin, end)
        self._nested -= 1

    def _add_kind(self, expansion: _Expansion, begin: int, end: int) -> None:
        """Add an expansion as its kind asks for."""
        if isinstance(expansion, _Words):
            self._add_words(self.words_of(expansion.text), begin, end)
        elif isinstance(expansion, _Reference):
            self._add_rule(expansion.rule, begin, end)
        elif isinstance(expansion, _Sequence):
            for part in expansion.parts[:-1]:
                middle = self._state()
                self._add(part, begin, middle)
                begin = middle
            if expansion.parts:
                self._add(expansion.parts[-1], begin, end)
            else:
                self._arcs.append((begin, 0, 0.0, end))
        elif isinstance(expansion, _Choice):
            self._add_choice(expansion, begin, end)
        else:
            loop, again = self._state(), self._state()
            if expansion.at_least_once:
                self._add(expansion.part, begin, loop)
            else:
                self._arcs.append((begin, 0, 0.0, loop))
            self._arcs.append((loop, 0, _HALF, again))
            self._arcs.append((loop, 0, _HALF, end))
            self._add(expansion.part, again, loop)

    def _add_choice(self, choice: _Choice, begin: int, end: int) -> None:
        """Add alternatives; those that are words alone as a tree of their beginnings.

        A long list would else make large subsets where it is made deterministic.
        """
        total = sum(weight for weight, _ in choice.alternatives)
        costs: dict[tuple[int, ...], float] = {}
        for weight, alternative in choice.alternatives:
            if weight == 0.0:
                continue
            cost = math.log(total / weight)
            text = _plain_text(alternative)
            if text is not None:
                words = tuple(self.words_of(text))
                costs[words] = min(cost, costs.get(words, math.inf))
            else:
                own = self._state()
                self._arcs.append((begin, 0, cost, own))
                self._add(alternative, own, end)
        if costs:
            self._add_lists(costs, begin, end)

    def _add_lists(
        self, costs: Mapping[tuple[int, ...], float], begin: int, end: int
    ) -> None:
        """Add lists of words with their costs, as a tree of their beginnings."""
        tree: dict[tuple[int, int], int] = {}  # a beginning, and a word -> the longer
        least = [math.inf]  # of what continues with a beginning; the first is empty
        ends: list[tuple[int, float]] = []
        for words, cost in costs.items():
            node = 0
            least[node] = min(cost, least[node])
            for word in words:
                node = tree.setdefault((node, word), len(least))
                if node == len(least):
                    least.append(cost)
                least[node] = min(cost, least[node])
            ends.append((node, cost))
        state = [self._state() for _ in least]
        self._arcs.append((begin, 0, least[0], state[0]))
        for (node, word), to in tree.items():
            arc = (state[node], word, least[to] - least[node], state[to])
            self._arcs.append(arc)
        for node, cost in ends:
            self._arcs.append((state[node], 0, cost - least[node], end))

    def _add_words(self, words: list[int], begin: int, end: int) -> None:
        """Add words one behind the other."""
        for n, word in enumerate(words):
            to = end if n == len(words) - 1 else self._state()
            self._arcs.append((begin, word, 0.0, to))
            begin = to
        if not words:
            self._arcs.append((begin, 0, 0.0, end))

    def _add_rule(self, name: str, begin: int, end: int) -> None:
        """Add a rule; what it becomes before one state is made once."""
        if name == "GARBAGE" and name not in self.rules:
            if self.unknown is None:
                raise _fault("<GARBAGE>: the package has no sound of unknown words")
            part = self._state()
            self._arcs.append((begin, 0, 0.0, part))
            self._arcs += [(part, self.unknown, _HALF, part), (part, 0, _HALF, end)]
            return
        if name not in self.rules:
            raise _fault(
                f"there is no rule <{name}>",
                remedy="put in what it needs of other grammars: nothing is imported",
            )
        key = name, end
        if key not in self._begin:
            if name in self._open:
                raise _fault(
                    f"the rule <{name}> has itself elsewhere than at its end",
                    remedy="write repetitions with * or +",
                )
            if len(self._open) >= _MAX_DEPTH:
                raise _fault(f"rules are nested more than {_MAX_DEPTH} deep")
            self._begin[key] = self._state()
            self._open.append(name)
            self._add(self.rules[name], self._begin[key], end)
            self._open.pop()
        self._arcs.append((begin, 0, 0.0, self._begin[key]))
