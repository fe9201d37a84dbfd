"""Every function reads every form of an output in the same way, or refuses it with the same message."""

import copy
import re
import warnings
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from odd_networks import Plain
from public_functions import CHOSEN, EVERY_EXPLAINER, EVERY_METRIC, FUNCTIONS, assert_same, evaluate, images_of, maps_of
from torch import nn

import heatproof
from heatproof.core.logits import read_logits
from heatproof.errors import HeatproofError

LABELS = torch.tensor([0, 1, 0, 1, 1, 0])
ONE_LOGIT = {
    "(N, 1)": lambda z: z,
    "(N,)": lambda z: z[:, 0],
    "squeezed": lambda z: z.squeeze(),
    "(N, 1, 1, 1)": lambda z: z[:, :, None, None],
    "tuple": lambda z: (z,),
    "list": lambda z: [z[:, 0]],
    "with hidden states": lambda z: (z, [z * 0] * 3),
    "dict": lambda z: {"out": z},
    "logits": lambda z: SimpleNamespace(logits=z[:, 0], loss=None),
    "logits in a dict": lambda z: {"logits": z, "hidden_states": (z, z)},
    "sparse": lambda z: z.to_sparse(),
}
SEVERAL = {
    "(N, K, 1, 1)": lambda z: z[:, :, None, None],
    "tuple": lambda z: (z, [z * 0]),
    "named tuple": lambda z: namedtuple("Output", "logits aux")(z, None),
    "named tuple of two": lambda z: namedtuple("Output", "logits aux_logits")(z, z),
    "dict": lambda z: {"features": z[:, None, :, None], "out": z},
    "object": lambda z: SimpleNamespace(logits=z, hidden_states=(z * 0,)),
    "half": lambda z: z.half(),
}
REFUSED = {
    "segmentation": lambda z: torch.zeros(len(z), 3, 8, 8),
    "segmentation in a dict": lambda z: {"out": torch.zeros(len(z), 3, 8, 8), "aux": torch.zeros(len(z), 3, 8, 8)},
    "a detector": lambda z: [{"boxes": torch.zeros(2, 4), "labels": torch.zeros(2)} for _ in z],
    "classes": lambda z: z.argmax(1),
    "whole numbers": lambda z: z.long(),
    "truth": lambda z: z > 0,
    "complex": lambda z: z.to(torch.complex64),
    "nothing": lambda z: None,
    "text": lambda z: "cat",
    "a number": lambda z: 3.0,
    "an array": lambda z: z.detach().numpy(),
    "two of logits": lambda z: (z, 2 * z),
    "two in a dict": lambda z: {"a": z, "b": z},
    "an empty tuple": lambda z: (),
    "no images": lambda z: z[:0],
    "no classes": lambda z: z[:, :0],
    "a mean": lambda z: z.mean(0),
    "one for all": lambda z: z.mean(),
    "transposed": lambda z: z.T,
    "tokens": lambda z: z[:, None],
    "logits that are none": lambda z: SimpleNamespace(logits=None),
    "a tuple of tuples": lambda z: ((z,),),
}
MAIN = ["explain", "evaluate", "choose", "finetune", "image_scores"]


def call(function, network, labels=LABELS):
    with warnings.catch_warnings(action="ignore"):
        return FUNCTIONS[function](network, images_of(), labels, maps_of())


def two_heads(network, head="head"):
    """Return a network with one logit as one with two, -z/2 and z/2."""
    model = copy.deepcopy(network)
    layer = getattr(model, head)
    doubled = nn.Linear(layer.in_features, 2)
    with torch.no_grad():
        doubled.weight.copy_(torch.cat([-layer.weight, layer.weight]) / 2)
        doubled.bias.copy_(torch.cat([-layer.bias, layer.bias]) / 2)
    setattr(model, head, doubled)
    return model.eval()


@pytest.fixture(scope="module")
def of_two_logits():
    maps = {function: call(function, two_heads(Plain(classes=1))) for function in ("explain", "choose", "image_scores")}
    # MAS divides by small differences, and separate heads would round differently.
    maps["evaluate"] = call("evaluate", Plain(classes=1, finish=lambda z: torch.cat([-z, z], 1) / 2))
    return maps


@pytest.mark.parametrize("function", [function for function in MAIN if function != "finetune"])
@pytest.mark.parametrize(
    "form",
    [form if form in ("squeezed", "logits") else pytest.param(form, marks=pytest.mark.long) for form in ONE_LOGIT],
)
def test_one_logit_is_read_as_two(form, function, of_two_logits):
    result, wanted = call(function, Plain(classes=1, finish=ONE_LOGIT[form])), dict(of_two_logits[function])
    if (form, function) == ("sparse", "explain"):
        # The trace of LRP does not follow a conversion to a sparse tensor.
        assert np.isnan(result.pop("lrp")).all()
        del wanted["lrp"]
    assert_same(result, wanted)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["convolutions", "transformer"])
def test_one_logit_has_the_maps_of_two_by_all_explainers(kind):
    if kind == "convolutions":
        network, size = Plain(classes=1), 8
    else:
        network, size = (
            timm.models.VisionTransformer(32, 8, num_classes=1, embed_dim=12, depth=2, num_heads=2).eval(),
            32,
        )
        nn.init.normal_(network.head.weight)
    applicable = []
    images = images_of(300, size)
    for explainer in EVERY_EXPLAINER:
        maps = [
            heatproof.explain(model, images[:2], LABELS[:2], [explainer], background=images)
            for model in (network, two_heads(network))
        ]
        reasons = [result["reason"].values.tolist() for result in maps]
        assert reasons[0] == reasons[1], explainer
        np.testing.assert_allclose(*(result["attribution"] for result in maps), rtol=1e-4, atol=1e-6, err_msg=explainer)
        applicable += [explainer] if maps[0]["reason"].values[0] == "" else []
    assert {"lrp", "deep_lift", "iba"} <= set(applicable) or "chefer_lrp" in applicable


def test_the_task_of_one_logit_is_binary():
    single, repeated = Plain(classes=1), Plain()
    for network, task in ((single, "binary"), (repeated, "multiclass")):
        maps = heatproof.explain(network, images_of(), LABELS, ["saliency"])
        assert maps.attrs["task"] == task
        assert heatproof.evaluate("sds", network, images_of(), LABELS, maps_of()["a"]).attrs["task"] == task


@pytest.mark.parametrize("function", MAIN)
def test_one_logit_has_no_third_class(function):
    with pytest.raises(HeatproofError, match="class 2, but the model has classes 0 to 1"):
        call(function, Plain(classes=1), torch.tensor([0, 1, 0, 2, 1, 0]))


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("target", [0, 1])
def test_the_exact_map_of_a_linear_network_scores_one(target, classes, images):
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, classes)).eval()
    inputs, targets = images_of(images), torch.full((images,), target)
    maps = heatproof.explain(linear, inputs, targets, ["input_x_gradient"])["attribution"][0].values
    with warnings.catch_warnings(action="ignore"):
        right, wrong = (heatproof.evaluate("idsds", linear, inputs, targets, sign * maps)["score"] for sign in (1, -1))
    np.testing.assert_allclose(right, 1)
    np.testing.assert_allclose(wrong, -1)


@pytest.mark.parametrize("function", MAIN)
@pytest.mark.parametrize(
    "form", [form if form in ("object", "half") else pytest.param(form, marks=pytest.mark.long) for form in SEVERAL]
)
def test_logits_are_found_in_structured_outputs(form, function, of_three):
    assert_same(call(function, Plain(finish=SEVERAL[form])), of_three[function], 2e-3 if form == "half" else 1e-6)


@pytest.fixture(scope="module")
def of_three():
    return {function: call(function, Plain()) for function in MAIN}


@pytest.mark.parametrize("form", REFUSED)
def test_outputs_without_logits_are_refused_in_one_sentence(form):
    messages = set()
    for function in MAIN:
        with pytest.raises(HeatproofError, match="The model return") as caught:
            call(function, Plain(finish=REFUSED[form]))
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert re.search(r"wrap it so that it returns one tensor of logits \(images, classes\)", *messages)
    assert "\n" not in messages.pop()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_logits_of_any_shape_are_read(count, classes):
    z = torch.randn(count, classes)
    wanted = torch.cat([-z, z], 1) / 2 if classes == 1 else z
    for form in (z, z[:, :, None, None], (z,), [z], {"a": z}, SimpleNamespace(logits=z), z.to_sparse()):
        torch.testing.assert_close(read_logits(form, count), wanted)
    if classes == 1 or count == 1:
        torch.testing.assert_close(read_logits(z.squeeze(), count), wanted)


def scripted():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    return torch.jit.script(network)


def exported():
    sizes = ({0: torch.export.Dim("batch", min=1, max=512)},)
    return torch.export.export(Plain(), (images_of(4),), dynamic_shapes=sizes).module()


def compiled_in_place():
    model = Plain()
    model.compile()
    return model


class WithCompiledFunction(Plain):
    def __init__(self):
        super().__init__()
        self.scale = torch.compile(lambda logits: 2 * logits, backend="eager")

    def forward(self, images):
        return self.scale(super().forward(images))


FORMS = {
    "scripted": scripted,
    "traced": lambda: torch.jit.trace(Plain(), images_of(2)),
    "frozen": lambda: torch.jit.freeze(torch.jit.trace(Plain(), images_of(2))),
    "traced within": lambda: nn.Sequential(torch.jit.trace(Plain(), images_of(2))).eval(),
    "exported": exported,
    "compiled": lambda: torch.compile(Plain()),
    "compiled in place": compiled_in_place,
    "compiled within": lambda: nn.Sequential(torch.compile(Plain())).eval(),
    "compiled function within": lambda: WithCompiledFunction().eval(),
    "quantised": lambda: torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}),
    "in parallel": lambda: nn.DataParallel(Plain()).eval(),
    "half": lambda: Plain().half(),
    "bfloat16": lambda: Plain().bfloat16(),
    "of torch.fx": lambda: torch.fx.symbolic_trace(Plain()).eval(),
}


@pytest.mark.parametrize(
    "form",
    [
        form
        if form in ("frozen", "exported", "compiled", "compiled function within")
        else pytest.param(form, marks=pytest.mark.long)
        for form in FORMS
    ],
)
def test_scripted_compiled_and_other_modules_are_supported(form, recwarn):
    compiled = torch._dynamo.utils.counters["frames"]["total"]
    with warnings.catch_warnings(action="ignore"):
        network = FORMS[form]()
    maps = heatproof.explain(network, images_of(), LABELS, CHOSEN, background=images_of())
    reasons = dict(zip(maps["method"].values.tolist(), maps["reason"].values.tolist(), strict=True))
    not_applicable = {name for name, reason in reasons.items() if reason}
    assert all("eval()" not in reason and "\n" not in reason for reason in reasons.values())
    assert np.isfinite(maps["attribution"].sel({"method": sorted(set(CHOSEN) - not_applicable)})).all()
    if form.startswith("compiled") or form in ("in parallel", "half", "bfloat16", "of torch.fx"):
        assert not not_applicable
    for function in ("evaluate", "choose", "image_scores"):
        call(function, network)
    if isinstance(network, torch.jit.ScriptModule):
        with pytest.raises(HeatproofError, match="scripted"):
            call("finetune", network)
    elif form != "quantised":
        call("finetune", network)
    assert torch._dynamo.utils.counters["frames"]["total"] == compiled, "nothing is compiled"


@pytest.mark.long
@pytest.mark.parametrize("metric", EVERY_METRIC)
def test_every_metric_reads_one_logit_as_two(metric):
    scores = [
        evaluate(Plain(classes=1, finish=form), images_of(), LABELS, maps_of(), [metric])[metric]
        for form in (lambda z: z.squeeze(), lambda z: torch.cat([-z / 2, z / 2], 1))
    ]
    np.testing.assert_allclose(*scores, atol=1e-6)
