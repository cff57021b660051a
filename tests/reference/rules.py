"""The rules of the workflow as its files have them, each with what it inherits."""

import re
from dataclasses import dataclass

_HEAD = re.compile(
    r"^( *)(?:use rule (?P<base>\w+) as (?P<new>\w+) with|rule(?: (?P<own>\w+))?):\n"
    r"(?P<body>(?:(?:\1 +.*)?\n)+)",
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^( +)(\w+):(.*\n(?:(?:\1 +.*)?\n)*)", re.MULTILINE)
_PARAM = re.compile(r"^( +)(\w+)=(.*\n(?:(?:\1[ )}\]].*)?\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    """Directives of a rule by name, as text; its params, by name."""

    directives: dict[str, str]
    params: dict[str, str]

    @property
    def stage(self):
        """Dotted name of its stage function."""
        return re.search(r'"(latflow[\w.]+)"', self.params["stage"])[1]

    @property
    def counted(self):
        """Names of code that the rule's digest counts; the stage comes first."""
        return re.findall(r'"(latflow[\w.]+)"', self.params["stage"])

    @property
    def given(self):
        """Names of what it gives its stage."""
        files = self.directives.get("input", "") + self.directives.get("output", "")
        return {name for _, name, _ in _PARAM.findall(files)} | self.params.keys()


def read_rules(repository):
    """Rules that run something, by name; those for downloads are one, `download`."""
    found = {}
    files = re.findall(r'include: "(.+)"', (repository / "Snakefile").read_text())
    text = "\n".join((repository / file).read_text() for file in files)
    for head in _HEAD.finditer(text):
        own = {name: text for _, name, text in _DIRECTIVE.findall(head["body"])}
        params = {n: text for _, n, text in _PARAM.findall(own.get("params", ""))}
        if head["base"]:
            base = found[head["base"]]
            own, params = base.directives | own, base.params | params
        if "script" in own:
            found[head["own"] or head["new"] or "download"] = Rule(own, params)
    assert len(found) > 50
    return found
