"""Read and write the YAML of configs: unambiguous values only, with limits on size and nesting.

YAML 1.1, which most Python programs read, and YAML 1.2 disagree on some values: ``no`` is false or text, ``017`` is 15
or 17, ``1:30`` is 90 or text. Only values on which they agree are read; all others raise an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never

import yaml
from yaml import events

from heatproof.errors import HeatproofError
from heatproof.store.publishing import escaped
from heatproof.store.reading import open_regular, printable_path

# Far above any config. Nodes of an alias are counted each time it is used, so that aliases of aliases cannot multiply.
MOST_BYTES = 2**20
MOST_NODES = 100_000
DEEPEST = 50
LONGEST_NUMBER = 400
# libyaml is ten times as fast, where PyYAML includes it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
REAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
# Texts that at least one version of YAML takes for something else: (pattern, what it is, what to write instead).
UNCLEAR = [
    (
        re.compile("y|n|yes|no|on|off", re.IGNORECASE),
        "true or false to some programs and a text to others",
        "true or false",
    ),
    (re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE), "not a finite number", "a finite number"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(:[0-9_]+)+(\.[0-9_]*)?"),
        "a number to the base 60 to some programs",
        "seconds as a whole number",
    ),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?"), "a date to some programs", "it as a text"),
    (
        re.compile(r"[-+]?(0[0-9_]+|0o[0-7_]+)"),
        "a number to the base 8 to some programs and to the base 10 to others",
        "the number to the base 10 without a leading 0",
    ),
    (re.compile(r"[-+]?0[bx][0-9a-fA-F_]+"), "a number to another base than 10", "the number to the base 10"),
    (re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*([eE][-+]?[0-9]+)?"), "", ""),
    (re.compile("="), "the default value of a mapping to some programs", "it as a text"),
]
# Characters that end lines in some programs only, and characters that reverse the order of letters: a reader sees
# another text than the program.
DECEPTIVE = re.compile("[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]|\r(?!\n)")


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a config file.

    Parameters
    ----------
    path
        A regular file, or a link to one.

    Raises
    ------
    HeatproofError
        If the file cannot be read or is not valid; the message names the file, the line and the remedy.
    """
    name = f"The config {escaped(printable_path(path), keep='')}"
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise HeatproofError(f"{name} cannot be read ({error.strerror}).") from None
    if len(content) > MOST_BYTES:
        raise HeatproofError(f"{name} is longer than {MOST_BYTES:,} bytes: split it, or check that it is a config.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise HeatproofError(f"{name} is not text in UTF-8.") from None
    value = load(text, name)
    if not isinstance(value, dict):
        raise HeatproofError(f"{name} must be a mapping of keys to values.")
    return value


def load(text: str, name: str = "The YAML") -> Any:
    """Return the value of a YAML document.

    Parameters
    ----------
    text
        One document.
    name
        Subject of error messages.

    Raises
    ------
    HeatproofError
        As `read_mapping` does.
    """
    if match := DECEPTIVE.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise HeatproofError(
            f"{name} has the character {match[0]!a} in line {line}, which makes the text look different from what is "
            "read: remove it, or write it so, in double quotes."
        )
    for line, words in enumerate(text.split("\n"), 1):
        if words.startswith("%"):
            raise HeatproofError(f"{name} has a line that begins with % in line {line}: remove it, or indent the text.")
    try:
        return _Reader(text, name).document()
    except yaml.YAMLError as error:
        raise HeatproofError(f"{name} is not valid YAML{_where(error, text)}") from None


def meaning(text: str) -> Any:
    """Return the value of a scalar without quotes and tag.

    Raises
    ------
    ValueError
        If programs do not agree on its meaning. The arguments are what some programs take it for, and what to write
        instead.
    """
    if text in CONSTANTS:
        return CONSTANTS[text]
    if text[0] not in "+-.0123456789ynofYNOF=":
        return text
    if len(text) > LONGEST_NUMBER and re.fullmatch(r"[-+]?[0-9.][0-9a-fA-F_.x:eE+-]*", text):
        raise ValueError(f"a number of more than {LONGEST_NUMBER} characters", "a shorter one")
    if INTEGER.fullmatch(text):
        return int(text)
    if HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    if REAL.fullmatch(text):
        if math.isfinite(number := float(text)):
            return number
        raise ValueError("not a finite number", "a finite number")
    for pattern, what, instead in UNCLEAR:
        if pattern.fullmatch(text):
            raise ValueError(what or "a number to some programs and a text to others", instead or _number(text))
    return text


def _number(text: str) -> str:
    """Return a number in a notation that all programs take for a number."""
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    if not exponent:
        return mantissa
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{sign}{exponent}"


class _Reader:
    """Builds the value of one document from the events of the parser, and counts nodes and depth."""

    def __init__(self, text: str, name: str) -> None:
        self.name, self.nodes = name, 0
        self.events: Iterator[Any] = yaml.parse(text, Loader=LOADER)
        # For each anchor: its value, the number of its nodes, and its depth.
        self.anchors: dict[str, tuple[Any, int, int]] = {}
        # Depth of the deepest node of the value that is being read, counted from the document.
        self.reached = 0

    def document(self) -> Any:
        next(self.events)
        start = next(self.events)
        if isinstance(start, events.StreamEndEvent):
            return None
        value = self.value(next(self.events), 0)
        next(self.events)
        if not isinstance(more := next(self.events), events.StreamEndEvent):
            self.refuse(more, "has a second document", "remove the line --- and what follows, or make it a file")
        return value

    def refuse(self, event: Any, what: str, remedy: str) -> Never:
        raise HeatproofError(f"{self.name} {what} in line {_line(event)}: {remedy}.")

    def add(self, event: Any, nodes: int = 1) -> None:
        self.nodes += nodes
        if self.nodes > MOST_NODES:
            self.refuse(
                event, f"has more than {MOST_NODES:,} values, those of aliases counted each time,", "shorten it"
            )

    def go_down(self, event: Any, depth: int) -> None:
        self.reached = max(self.reached, depth)
        if depth > DEEPEST:
            self.refuse(event, f"is nested more than {DEEPEST} deep", "look there for brackets that are not closed")

    def value(self, event: Any, depth: int) -> Any:
        if isinstance(event, events.AliasEvent):
            if event.anchor not in self.anchors:
                self.refuse(
                    event,
                    f"has the alias {_short(str(event.anchor))} of no anchor before",
                    "write & and its name before a value",
                )
            value, nodes, height = self.anchors[event.anchor]
            self.add(event, nodes)
            self.go_down(event, depth + height)
            return _copy(value)
        if event.tag is not None:
            self.refuse(
                event,
                f"has the tag {_short(event.tag)}",
                "write the value without it, and a text that looks like a number in quotes",
            )
        before, above, self.reached = self.nodes, self.reached, depth
        self.add(event)
        self.go_down(event, depth)
        if isinstance(event, events.ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, events.SequenceStartEvent):
            value = []
            while not isinstance(item := next(self.events), events.SequenceEndEvent):
                value.append(self.value(item, depth + 1))
        else:
            value = self.mapping(depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = value, self.nodes - before, self.reached - depth
        self.reached = max(self.reached, above)
        return value

    def scalar(self, event: Any) -> Any:
        if not event.implicit[0]:
            return event.value
        try:
            return meaning(event.value)
        except ValueError as error:
            what, instead = error.args
            self.refuse(event, f"has {_short(event.value)}, which is {what},", f"write {instead}, or quotes for a text")

    def mapping(self, depth: int) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        # Keys are compared as text, because 18 and "18" would name the same file.
        lines: dict[str, int] = {}
        merged: Any = []
        while not isinstance(event := next(self.events), events.MappingEndEvent):
            if not isinstance(event, events.ScalarEvent):
                self.refuse(event, "has a key that is no text", "write a name before the colon")
            line = _line(event)
            key = self.value(event, depth + 1)
            if not isinstance(key, str) and type(key) is not int:
                self.refuse(event, f"has the key {_short(event.value)}, which is no text", "put it in quotes")
            if str(key) in lines:
                self.refuse(
                    event,
                    f"has the key {_short(str(key))} a second time",
                    f"the first is in line {lines[str(key)]}; remove one of the two",
                )
            lines[str(key)] = line
            value_event = next(self.events)
            value = self.value(value_event, depth + 1)
            if key == "<<" and event.implicit[0]:
                merged = value if isinstance(value, list) else [value]
                if not all(isinstance(source, dict) for source in merged):
                    self.refuse(value_event, "has << before something that is no mapping", "write *NAME of a mapping")
            else:
                mapping[key] = value
        for source in merged:
            for key, value in source.items():
                if str(key) not in lines:
                    lines[str(key)] = 0
                    mapping[key] = value
        return mapping


def _line(event: Any) -> int:
    return event.start_mark.line + 1


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _where(error: yaml.YAMLError, text: str) -> str:
    """Return the position of a syntax error and its usual cause, as the end of a sentence."""
    mark = getattr(error, "problem_mark", None)
    position = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    lines = text.splitlines()
    if mark and mark.line < len(lines) and lines[mark.line][mark.column : mark.column + 1] == "\t":
        return f"{position}: a tab stands there, and YAML is indented with spaces."
    return (
        f"{position}: look there and in the line before for an indentation that differs from its neighbours', a "
        "missing space behind a colon, or a bracket or quote that is not closed."
    )


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Writes texts in double quotes if they would mean something else without quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write an object that occurs twice in full both times."""
        return True


def _write_text(dumper: _Dumper, text: str) -> yaml.Node:
    try:
        plain = text.isprintable() and meaning(text) == text and text != "<<"
    except ValueError:
        plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _write_text)


def dump(value: Any) -> str:
    """Return YAML that `load` reads back as the same value.

    No text in the value can end a comment that is written before it.

    Parameters
    ----------
    value
        Mappings, lists, texts, numbers, booleans and None.
    """

    def written(unicode: bool) -> str:
        return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=unicode, width=110)

    # Letters of all languages are written as they are, unless some of them could not be recognised by a reader.
    text = written(True)
    return text if escaped(text) == text else written(False)
