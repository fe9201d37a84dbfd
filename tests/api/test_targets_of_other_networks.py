"""Target functions on networks that are not classifiers: a detector, an image encoder, a segmentation network."""

import numpy as np
import pytest
import torch

import heatproof
from heatproof.errors import HeatproofError

torchvision = pytest.importorskip("torchvision")

COUNT = 32
BOXES = torch.tensor([[4.0, 4, 16, 16], [12.0, 12, 30, 30]]).repeat(COUNT // 2, 1)


def matched(output, boxes):
    """Return the score of the box that overlaps most with the target box."""
    overlaps = [
        torchvision.ops.box_iou(box[None], detected["boxes"])[0] for detected, box in zip(output, boxes, strict=True)
    ]
    return torch.stack(
        [detected["scores"][overlap.argmax()] for detected, overlap in zip(output, overlaps, strict=True)]
    )


def _backbone() -> torch.nn.Module:
    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4, padding=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.ReLU(),
    )
    backbone.out_channels = 8
    return backbone


def _detector(kind: str) -> torch.nn.Module:
    from torchvision.models import detection
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    torch.manual_seed(0)
    anchors = AnchorGenerator(((8, 16),), ((1.0,),))
    common = {"num_classes": 3, "min_size": 32, "max_size": 32}
    if kind == "faster R-CNN":
        network = detection.FasterRCNN(
            _backbone(),
            rpn_anchor_generator=anchors,
            box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 4, 2),
            box_score_thresh=0.0,
            rpn_pre_nms_top_n_test=30,
            rpn_post_nms_top_n_test=10,
            box_detections_per_img=5,
            **common,
        )
        torch.nn.init.normal_(network.roi_heads.box_predictor.cls_score.weight, std=0.3)
    else:
        network = detection.RetinaNet(
            _backbone(), anchor_generator=anchors, score_thresh=0.0, detections_per_img=5, topk_candidates=20, **common
        )
        torch.nn.init.normal_(network.head.classification_head.cls_logits.weight, std=0.3)
        torch.nn.init.zeros_(network.head.classification_head.cls_logits.bias)
    return network.eval()


@pytest.mark.parametrize("kind", ["faster R-CNN", pytest.param("RetinaNet", marks=pytest.mark.slow)])
def test_the_score_of_a_detected_box_can_be_a_target(kind: str) -> None:
    network, images = _detector(kind), torch.rand(COUNT, 3, 32, 32)
    methods = ["input_x_gradient", {"occlusion": {"window": 0.25, "stride": 0.25}}]
    maps = heatproof.explain(network, images[:8], BOXES[:8], methods, target=matched)
    assert not any(maps["reason"].values)
    assert (abs(maps["attribution"]).max(("image", "y", "x")) > 0).all()
    scores = heatproof.evaluate("sds", network, images[:8], BOXES[:8], maps, baseline="zeros", target=matched)["score"]
    # Occlusion with the windows of the grid equals the deletion of its patches.
    assert float(scores.sel({"method": "occlusion"}).mean("image")) > 0.9
    choice = heatproof.choose(
        network, images, BOXES, ["input_x_gradient"], measures={"sds": {"baseline": "zeros"}}, target=matched
    )
    assert choice.table["sds"].notna().all()
    with pytest.raises(HeatproofError, match="score it without finetuning"):
        heatproof.finetune(network, images, target=matched)


class _Encoder(torch.nn.Module):
    """A network that returns embeddings of images, like CLIP's image encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.ReLU(), torch.nn.Flatten())
        self.head = torch.nn.Linear(8 * 64, 16)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"image_embeds": self.head(self.body(images))}


def test_similarity_to_an_embedding_can_be_a_target() -> None:
    torch.manual_seed(0)
    network, images = _Encoder().eval(), torch.randn(COUNT, 3, 32, 32)
    texts = torch.randn(4, 16)[torch.arange(COUNT) % 4]

    def similar(output: dict[str, torch.Tensor], texts: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cosine_similarity(output["image_embeds"], texts)

    maps = heatproof.explain(
        network, images, texts, ["input_x_gradient", "grad_cam", "feature_ablation"], target=similar
    )
    assert not any(maps["reason"].values)
    assert maps["target"].values.tolist() == [row % 4 for row in range(COUNT)]
    gradients = images.clone().requires_grad_()
    similar(network(gradients), texts).sum().backward()
    wanted = (images * gradients.grad).sum(1).numpy()
    assert maps["attribution"].sel({"method": "input_x_gradient"}).values == pytest.approx(wanted, abs=1e-5)
    scores = heatproof.evaluate("sds", network, images, texts, maps, grid=8, baseline="zeros", target=similar)["score"]
    # The cells of its map are the patches.
    assert scores.sel({"method": "feature_ablation"}).values == pytest.approx(np.ones(COUNT), abs=1e-3)
    choice = heatproof.choose(network, images, texts, ["input_x_gradient", "grad_cam"], target=similar)
    assert set(choice.table["method"]) >= {"grad_cam", "random", "edges"}


def test_a_class_within_a_mask_of_a_segmentation_can_be_a_target() -> None:
    torch.manual_seed(0)
    network = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    ).eval()
    images, masks = torch.randn(4, 3, 64, 64), torch.zeros(4, 64, 64, dtype=torch.bool)
    masks[:2, :32], masks[2:, 32:] = True, True

    def within(output: dict[str, torch.Tensor], masks: torch.Tensor) -> torch.Tensor:
        return (output["out"][:, 1] * masks).mean((1, 2))

    maps = heatproof.explain(network, images, masks, ["saliency", "grad_cam"], target=within)
    assert not any(maps["reason"].values)
    assert len(set(maps["target_digest"].values.tolist())) == 2
    scores = heatproof.evaluate("sds", network, images, masks, maps, baseline="zeros", target=within)
    assert scores["valid"].all()
    with pytest.raises(HeatproofError, match="target="):
        heatproof.explain(_MapOnly(network), images, None, "saliency")


class _MapOnly(torch.nn.Module):
    """The network with only its map as output."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images)["out"]
