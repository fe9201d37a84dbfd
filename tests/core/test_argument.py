"""A spec reaches its job whatever its length."""

import json
import subprocess

from heatproof.argument import LONGEST, PACKED, of_argument, to_argument


def spec_of(cases):
    return {"scores": [f"results/scores/digits/model_{n}/finetuned/idsds.parquet" for n in range(cases)], "it's": "é"}


def test_short_specs_are_plain_json():
    spec = spec_of(3)
    assert to_argument(spec) == json.dumps(spec, sort_keys=True)
    assert of_argument(to_argument(spec)) == spec


def test_long_specs_are_packed_and_fit_into_a_command():
    spec = spec_of(20_000)
    assert len(json.dumps(spec)) > 10 * LONGEST
    text = to_argument(spec)
    assert text.startswith(PACKED)
    assert text == to_argument(dict(reversed(spec.items())))
    assert of_argument(text) == spec
    subprocess.run(["/bin/sh", "-c", f"test -n '{text}'"], check=True)
