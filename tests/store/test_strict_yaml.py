"""A config has one meaning for all readers, and no file, whatever its bytes, crashes the reader."""

import os
import random
import subprocess
import sys
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from heatproof.errors import HeatproofError
from heatproof.store.strict_yaml import MOST_BYTES, dump, load
from heatproof.workflow.config.files import read_config, workflow_folder

UNCLEAR = {
    **dict.fromkeys(("yes", "No", "ON", "off", "y", "N"), "write true or false, or quotes for a text"),
    "1:30": "a number to the base 60 to some programs, in line 1",
    "-12:30:45.5": "to the base 60",
    "190:20:30": "to the base 60",
    "017": "to the base 8 .* without a leading 0",
    "08": "to the base 8",
    "-00": "to the base 8",
    "0o17": "to the base 8",
    "0b101": "another base than 10",
    "-0x1F": "another base than 10",
    "0x_1F": "another base than 10",
    "1_000": "write 1000, or quotes for a text",
    "1_0.5": "write 10.5, or quotes",
    "1e-3": "write 1.0e-3, or quotes",
    "1e3": r"write 1.0e\+3, or quotes",
    "1.5E3": r"write 1.5e\+3, or quotes",
    ".5e3": r"write .5e\+3, or quotes",
    "2001-01-01": "a date to some programs",
    "2001-1-1 12:30:45": "a date to some programs",
    ".inf": "not a finite number",
    "-.INF": "not a finite number",
    ".NaN": "not a finite number",
    "1.0e+999": "not a finite number",
    "=": "the default value of a mapping",
    "9" * 401: "a number of more than 400 characters",
    "9" * 5000: "a number of more than 400 characters",
    "0." + "0" * 5000: "a number of more than 400 characters",
    "1:" * 500 + "1": "a number of more than 400 characters",
    "!!binary aGk=": "has the tag 'tag:yaml.org,2002:binary' in line 1",
    "!!set {a, b}": "has the tag",
    "!!str 5": "has the tag",
    "! 5": "has the tag",
    "!own 5": "has the tag",
    "!!python/object/apply:os.system [true]": "has the tag",
    "!!timestamp 2001-01-01": "has the tag",
    "!!omap [a: 1]": "has the tag",
}


@pytest.mark.parametrize("where", ["{}", "[a, {}]", "{{b: {}}}", "{{<<: {{b: {}}}}}"])
@pytest.mark.parametrize("text", UNCLEAR, ids=lambda text: text[:30])
def test_ambiguous_values_are_refused(text, where):
    with pytest.raises(HeatproofError, match=UNCLEAR[text]) as caught:
        load(f"a: {where.format(text)}\n", "The config c.yaml")
    assert str(caught.value).startswith("The config c.yaml has ")
    assert " in line 1: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [text for text in UNCLEAR if not text.startswith("!")], ids=lambda text: text[:30])
def test_ambiguous_values_in_quotes_are_texts(text):
    assert load(f"a: '{text}'") == {"a": text}
    assert load(dump({"a": text, text: [text]})) == {"a": text, text: [text]}


CLEAR = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "FALSE": False,
    "0": 0,
    "-0": 0,
    "+7": 7,
    "0x1F": 31,
    "-1.5": -1.5,
    "007.5": 7.5,
    "1.0e-3": 0.001,
    "1.e+3": 1000.0,
    "yes sir": "yes sir",
    "none": "none",
    "nonsense": "nonsense",
    "2h": "2h",
    "1.2.3": "1.2.3",
    "16x16": "16x16",
    "C:/photos": "C:/photos",
    "a:b": "a:b",
    "nan": "nan",
    "infinity": "infinity",
    '"\\u202e"': "\u202e",
    "'no'": "no",
}


@pytest.mark.parametrize("text", CLEAR)
def test_unambiguous_values_are_read(text):
    assert load(f"a: {text}") == {"a": CLEAR[text]}
    assert type(load(f"a: {text}")["a"]) is type(CLEAR[text])


REFUSED = {
    "a key twice": ("a: 1\nfinetuning: {}\nb: 2\nfinetuning: {}\n", r"'finetuning' a second time in line 4: the first"),
    "a key twice within": ("a: {b: 1, b: 1}", r"'b' a second time"),
    "a key as a number and a text": ("a: {18: 1, '18': 1}", "'18' a second time"),
    "merged twice": ("a: &a {b: 1}\nc: {<<: *a, <<: *a}", "'<<' a second time in line 2"),
    "a merged text": ("a: {<<: b}", "<< before something that is no mapping"),
    "a list as a key": ("? [a, b]\n: c", "has a key that is no text in line 1"),
    "a mapping as a key": ("{a: b}: c", "has a key that is no text"),
    "an alias as a key": ("a: &a b\n*a : c", "has a key that is no text in line 2"),
    "true as a key": ("true: 1", "the key 'true', which is no text in line 1: put it in quotes"),
    "null as a key": ("~: 1", "the key '~', which is no text"),
    "a real number as a key": ("0.5: 1", "the key '0.5', which is no text"),
    "no as a key": ("a:\n  no: 1", "'no', which is true or false .* in line 2"),
    "an alias of itself": ("a: &a [*a]", r"the alias 'a' of no anchor before"),
    "an alias of nothing": ("a: *b", r"the alias 'b' of no anchor before"),
    "two documents": ("a: 1\n---\na: 2", "a second document in line 2"),
    "a directive": ("%YAML 1.1\n---\na: 1", "a line that begins with % in line 1"),
    "an end of line to some": ("# harmless\u2028plugins: [evil]", r"the character '\\u2028' in line 1"),
    "a next line": ("# harmless\x85plugins: [evil]", r"the character '\\x85' in line 1"),
    "a carriage return alone": ("# harmless\rplugins: [evil]", r"the character '\\r' in line 1"),
    "letters turned round": ("a: 1\n# \u202egnihton", r"the character '\\u202e' in line 2"),
    "a control character": ("a: \x07", "is not valid YAML"),
    "half a character": ('a: "\\ud800"', "is not valid YAML"),
    "nested": ("a: " + "[" * 300, "nested more than 50 deep in line 1"),
    "nested without end": ("a: " + "[" * 200_000, "nested more than 50 deep|is not valid YAML"),
    "nested mappings": ("{a: " * 200_000, "nested more than 50 deep"),
    "nested by lines": ("- " * 100_000, "nested more than 50 deep"),
    "questions": ("? " * 100_000, "a key that is no text"),
    "laughs": (
        "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else '1'] * 10)}]" for n in range(12)),
        "more than 100,000 values, those of aliases counted each time, in line 5",
    ),
    "laughs merged": (
        "a0: &a0 {x: 1}\n"
        + "\n".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}, <<: *a{n - 1}}}" for n in range(1, 40)),
        "more than 100,000 values",
    ),
    "many values": ("a: [" + "1," * 150_000 + "1]", "more than 100,000 values"),
    "too long": ("# " + "x" * MOST_BYTES, "longer than 1,048,576 bytes"),
    "quotes that do not end": ("a: '" + "x\n" * 400_000, "is not valid YAML"),
    "a tab": ("a:\n\t- 1", "a tab stands there"),
    "nothing": ("", "must be a mapping of keys to values"),
    "a list": ("- a", "must be a mapping of keys to values"),
    "a template": ("__use_yte__: true\n?print('x'): {}", "Snakemake runs the other keys as code: remove it"),
}


# Some ten for each of 100,000 values; work that grows with the square of their number takes billions.
MOST_CALLS = 5_000_000


@contextmanager
def most_calls(limit):
    """Fail if more functions are called: unlike seconds, their number does not depend on the machine."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert calls < limit


@pytest.mark.parametrize("what", REFUSED)
def test_refused_values_are_named_with_their_line(what, tmp_path):
    text, message = REFUSED[what]
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode("utf-8"))
    with most_calls(MOST_CALLS), pytest.raises(HeatproofError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"The config {path} ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) - len(str(path)) < 300


def test_anchors_and_merge_keys_are_read():
    text = "a: &a {b: 1, c: [2]}\nd: *a\ne: {<<: *a, b: 3}\nf: {<<: [{g: 1}, {g: 2, 7: 8}], '7': 9}"
    read = load(text)
    assert read == {
        "a": {"b": 1, "c": [2]},
        "d": {"b": 1, "c": [2]},
        "e": {"b": 3, "c": [2]},
        "f": {"g": 1, "7": 9},
    }
    read["a"]["c"].append(3)
    assert read["d"]["c"] == [2], "a copy of its own"


@pytest.mark.parametrize("path", sorted((workflow_folder() / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_that_come_with_heatproof_mean_the_same_to_other_programs(path):
    text = path.read_text(encoding="utf-8")
    assert load(text) == yaml.safe_load(text)
    assert load(dump(load(text))) == load(text)


ODD = [
    "",
    " ",
    "a\nb: c",
    "# a",
    "- a",
    "a: b",
    "a #b",
    "{",
    "\x1b[2J",
    "\u202e",
    "\u2028",
    "\x85",
    "\ufeff",
    "é",
    "😀",
]
ODD += [
    "'",
    '"',
    "\\",
    "\t",
    "%x",
    "@x",
    "&x",
    "*x",
    "!x",
    "<<",
    "---",
    "...",
    "?",
    "-",
    "null",
    "~",
    "0x1",
    "1.5",
    "5",
]


def test_written_values_are_read_back():
    draw = random.Random(0)
    for number in range(300):
        texts = [*ODD, *UNCLEAR] if number == 0 else ["".join(draw.choices("".join(ODD), k=9)) for _ in range(5)]
        value = {text: [text, {"b": text, "c": [None, True, 1, 1e-05, -2.5e30]}] for text in texts}
        assert load(dump(value)) == value
        assert yaml.safe_load(dump(value)) == value
    assert dump({"a": "Äpfel/日本"}) == "a: Äpfel/日本\n"


def mutated(content: bytes, draw: random.Random) -> bytes:
    mutant = bytearray(content)
    for _ in range(draw.choice([1, 3, 30])):
        position = draw.randrange(len(mutant) or 1)
        mutant[position : position + draw.choice([0, 1, 40])] = draw.choice(
            [
                b"",
                b"&a ",
                b"*a",
                b"[",
                b"{",
                b"\n",
                b": ",
                b"- ",
                b"!!x ",
                b"%",
                b"'",
                b"\t",
                b"<<: *a",
                draw.randbytes(3),
            ]
        )
    return bytes(mutant)


def test_any_bytes_are_read_or_refused_in_one_sentence(tmp_path):
    path, draw = tmp_path / "c.yaml", random.Random(0)
    shipped = [config.read_bytes() for config in sorted((workflow_folder() / "config").glob("*.yaml"))]
    refused, lines = 0, set()
    for number in range(1500):
        path.write_bytes(
            draw.randbytes(draw.randrange(200)) if number % 5 == 0 else mutated(draw.choice(shipped), draw)
        )
        try:
            read_config(path)
        except HeatproofError as error:
            refused += 1
            lines.add(str(error).count("\n") + 1)
    assert lines == {1}
    assert 500 < refused < 1500


HEAVY = {
    "values": "a: [" + "1," * 99_000 + "1]",
    "aliases": "a: &a [" + "xy," * 300 + "1]\nb: [" + "*a, " * 300 + "1]",
    "one text": "a: '" + "x" * (MOST_BYTES - 10) + "'",
    "lines": "a: |\n" + " x\n" * 300_000,
    "anchors": "a:\n" + "\n".join(f"- &a{n}" for n in range(95_000)),
    "keys": "\n".join(f"k{n}: 1" for n in range(49_000)),
    "comments": "#\n" * 500_000 + "a: 1",
    "escapes": 'a: "' + "\\x41" * 260_000 + '"',
    "empty": "\n" * (MOST_BYTES - 10) + "a: 1",
}


@pytest.mark.parametrize("what", HEAVY)
def test_the_largest_configs_take_few_calls_and_little_memory(what, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(HEAVY[what])
    with most_calls(MOST_CALLS):
        read_config(path)
    tracemalloc.start()
    try:
        read_config(path)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    pipe, link = tmp_path / "pipe.yaml", tmp_path / "link.yaml"
    os.mkfifo(pipe)
    for path, message in ((pipe, "is a named pipe"), (tmp_path, "is a folder"), (Path("/dev/zero"), "is a device")):
        with pytest.raises(HeatproofError, match=message):
            read_config(path)
    link.symlink_to(pipe)
    with pytest.raises(HeatproofError, match="is a named pipe"):
        read_config(link)
    (tmp_path / "c.yaml").write_text("seed: 5\n")
    link.unlink()
    link.symlink_to("c.yaml")
    assert read_config(link)["seed"] == 5


def test_configs_are_read_without_libyaml():
    """PyYAML can be built without libyaml."""
    program = "import yaml; del yaml.CSafeLoader\nfrom heatproof.store import strict_yaml\n"
    program += "assert strict_yaml.LOADER is yaml.SafeLoader\nfrom heatproof.workflow.config.files import read_config\n"
    program += "assert read_config('cifar10')['seed'] == 0\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MODULE = """
configfile: "theirs.yaml"
module heatproof:
    snakefile: {snakefile!r}
    config: config["ours"]
use rule * from heatproof
"""


def snakemake(folder, *options):
    command = [sys.executable, "-P", "-m", "snakemake", "-n", "--cores", "1", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.workflow
def test_plain_snakemake_reads_configs_as_all_commands_do(tmp_path):
    snakefile = str(workflow_folder() / "Snakefile")
    options = ("--snakefile", snakefile, "--workflow-profile", "none", "--configfile")
    (tmp_path / "twice.yaml").write_text("seed: 1\nfinetuning: {epochs: 5}\nfinetuning: {grid: 4}\n")
    status, output = snakemake(tmp_path, *options, "twice.yaml")
    assert status == 1
    assert "heatproof: The config" in output
    assert "'finetuning' a second time in line 3: the first is in line 2; remove one of the two." in output
    assert "Traceback" not in output
    (tmp_path / "few.yaml").write_text("models: [{first: {architecture: small_vit}}]\nexplainers: [saliency]\n")
    (tmp_path / "more.yaml").write_text("models: [{second: {architecture: small_vit}}]\n")
    status, output = snakemake(tmp_path, *options, "few.yaml", "more.yaml", "--config", "seed=x")
    assert status == 1
    assert "'seed' in the config must be a whole number, not 'x'" in output, "over what files say"
    status, output = snakemake(tmp_path, *options, "few.yaml", "more.yaml", "--config", "seed=5")
    assert status == 0, output
    assert "model=second," in output
    assert "model=first," not in output


@pytest.mark.slow
@pytest.mark.workflow
def test_another_workflow_can_import_this_one_with_a_config(tmp_path):
    (tmp_path / "Snakefile").write_text(MODULE.format(snakefile=str(workflow_folder() / "Snakefile")))
    (tmp_path / "theirs.yaml").write_text("theirs: yes\nours: {models: [{second: {architecture: small_vit}}]}\n")
    status, output = snakemake(tmp_path)
    assert status == 0, output
    assert "cifar_resnet20" not in output
    assert "model=second," in output
