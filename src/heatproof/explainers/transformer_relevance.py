"""Layer-wise relevance propagation through vision transformers (timm)."""

from __future__ import annotations

from collections.abc import Iterator

from heatproof.core.batch import Batch
from heatproof.core.lazy import torch
from heatproof.errors import NotApplicable
from heatproof.explainers._attention import (
    BatchAttention,
    attention_blocks,
    find_transformer,
    propagate,
    record_attention,
    require_patch_tokens,
    to_pixels,
    token_layout_of,
    weigh_by_gradients,
)
from heatproof.explainers._batches import as_leaf, pad_single_image, split_batch
from heatproof.explainers._unaltered import require_unaltered_outputs
from heatproof.explainers.registry import Tolerance, explainer

# Default of the largest difference between the propagated relevance and that of the logit, as a share.
TOLERANCE = 1e-3


@explainer("chefer_lrp", family="transformer_relevance", signed=False, applies_to={"plain_vit"})
def chefer_lrp(context: Batch, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """LRP relevance of attention × its gradient, rolled out over blocks (Chefer et al., CVPR 2021).

    Chefer, Gur and Wolf, "Transformer interpretability beyond attention visualization", 2021, equations 13 and 14: the
    product over blocks of I + E[(gradient × relevance)⁺], the last block leftmost; E is the mean over heads. The
    relevance of attention starts as 1 at the target's logit. It is propagated back through linear layers by equation 3,
    and through sums and matrix products by equation 2, normalised by equation 10 so that its sum is conserved. Biases
    take no relevance, and norms, GELU and softmax pass it on unchanged. Two rules are additions: if no input raises an
    output of a linear layer, all inputs share its relevance in proportion to their absolute values, and a mean over
    patch tokens follows equation 2.

    An image takes one network pass and one gradient, in float64: relevance is divided by sums that can cancel, and in
    float32 rounding changed maps of a ViT by 5 % of their maximum in the median.

    Parameters
    ----------
    context
        The batch.
    tolerance
        Largest difference between the relevance at the first block's tokens and that of the logit with which the
        explainer is applicable, as a share of the latter. Null for 0.001.

    Returns
    -------
    dict
        ``chefer_lrp``: (N, H, W), not negative, higher is more relevant.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches, an operation has no rule, probabilities
        are explained, or the difference is above `tolerance`.
    """
    maps = []
    for attended, relevance, tokens in propagate_relevance(context):
        lost, limit = (tokens.sum((1, 2)) - 1).abs(), TOLERANCE if tolerance is None else tolerance
        context.note("conservation_error", lost, limit)
        if not (lost <= limit).all():
            raise NotApplicable(
                f"the relevance at the tokens of the first block differs from the logit by {lost.max():.2g} of it, "
                f"above {limit:g}"
            )
        maps.append(to_pixels(attended, propagate(weigh_by_gradients(relevance, attended.gradients))))
    return {"chefer_lrp": torch.cat(maps)}


@explainer(
    "attn_lrp",
    family="relevance",
    applies_to={"attention", "windows"},
    sums_to="the target's logit minus the relevance of constants",
)
def attn_lrp(context: Batch, *, tolerance: Tolerance = None) -> dict[str, torch.Tensor]:
    """AttnLRP: layer-wise relevance propagation with rules for attention (Achtibat et al. 2024).

    Achtibat et al., "AttnLRP: attention-aware layer-wise relevance propagation for transformers", 2024, section 3:
    softmax by its Taylor expansion, both factors of matrix products in equal shares, norms and activations by the
    identity rule, and linear layers by the epsilon rule, with a vanishing epsilon everywhere. The rules apply to the
    functions that a network calls, in any library. By the paper's rules, biases, embeddings and the constant term of
    softmax's expansion take relevance, so a map alone does not sum to the logit. The map and these constants together
    do, which is checked. An image takes one network pass and one gradient.

    Parameters
    ----------
    context
        The batch.
    tolerance
        Largest difference between that sum and the logit with which the explainer is applicable, as a share of the
        image's largest logit. Null for 0.001.

    Returns
    -------
    dict
        ``attn_lrp``: (N, H, W), any sign, in logits, higher is more relevant.

    Raises
    ------
    NotApplicable
        If probabilities are explained, or the difference is above `tolerance`.
    """
    from heatproof.explainers._attn_lrp import AttentionRules

    if context.output is not context.network:
        raise NotApplicable("LRP distributes a logit, and attribution.output is probability")
    maps = []
    for part in split_batch(context):
        padded, count = pad_single_image(part), len(part.image_ids)
        rules, images = AttentionRules(padded.images), as_leaf(padded.images)
        with rules, torch.enable_grad():
            logits = context.network(images.clone())
        require_unaltered_outputs(part, images, logits)
        target_logits = logits.gather(1, padded.targets[:, None])[:, 0]
        gradient = rules.gradient(target_logits.sum(), images)
        relevance = (gradient * images.detach()).sum(1)
        largest = logits.detach().abs().amax(1)
        lost = ((relevance.sum((1, 2)) + rules.constants - target_logits.detach()).abs() / largest)[:count]
        limit = TOLERANCE if tolerance is None else tolerance
        part.note("conservation_error", lost, limit)
        part.note_sum((target_logits.detach() - rules.constants)[:count])
        part.note("relevance_of_constants", (rules.constants.abs() / largest)[:count], mean=True)
        if not (lost <= limit).all():
            raise NotApplicable(
                "the relevance of the maps and of the network's constants differs from the logits by "
                f"{lost.max():.2g} of the largest logit, above {limit:g}: the network has an operation that no rule "
                "covers"
            )
        maps.append(relevance[:count])
    return {"attn_lrp": torch.cat(maps)}


def propagate_relevance(context: Batch) -> Iterator[tuple[BatchAttention, list[torch.Tensor], torch.Tensor]]:
    """Yield the attention of each part, the relevance of each block's attention, and that of the input tokens.

    Raises
    ------
    NotApplicable
        If the network has no attention blocks of timm over a grid of patches, an operation has no rule, or
        probabilities are explained.
    """
    from heatproof.explainers._cells import CellRecorder, follow_cells
    from heatproof.explainers._relevance import record_tensors, relevance_of_attention, require_rules

    network = context.network
    if context.output is not network:
        raise NotApplicable("LRP distributes a logit, and attribution.output is probability")
    context.require_network_outputs()
    blocks = attention_blocks(network)
    if not blocks:
        raise NotApplicable("the network has no attention blocks of timm, for which its rules are written")
    transformer = find_transformer(network, blocks)
    named_tensors = [*network.named_parameters(), *network.named_buffers()]
    double_precision = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in named_tensors
    }
    require_rules(transformer)
    for part in split_batch(context):
        padded, count = pad_single_image(part), len(part.image_ids)
        recorder = CellRecorder(part.images.shape[2:])
        with (
            record_attention(blocks) as attention,
            record_tensors(transformer) as tensors,
            torch.enable_grad(),
            follow_cells(network, recorder),
        ):
            logits = torch.func.functional_call(network, double_precision, (as_leaf(padded.images.double()),))
        require_patch_tokens(attention, padded.images, transformer, len(blocks))
        require_unaltered_outputs(part, padded.images, logits)
        if not torch.equal(logits, tensors[transformer][1]):
            raise NotApplicable("no rule covers the operations after the logits of the vision transformer")
        gradients = torch.autograd.grad(logits.gather(1, padded.targets[:, None]).sum(), attention)
        relevance, tokens = relevance_of_attention(transformer, tensors, attention, padded.targets)
        layout = token_layout_of(transformer, part)
        attended = BatchAttention(
            attention=[tensor.detach()[:count] for tensor in attention],
            gradients=[tensor[:count] for tensor in gradients],
            images=part.images,
            tokens=layout,
            cells=recorder.locate(attention[-1], layout.grid),
        )
        yield attended, [tensor[:count] for tensor in relevance], tokens[:count]
