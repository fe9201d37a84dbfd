import json

import torch
from captum.attr import IntegratedGradients, LayerAttribution, LayerGradCam, Saliency
from problem import BATCH, IMAGES, MODEL, STEPS, TARGETS


def grad_cam(images, targets):
    coarse = LayerGradCam(MODEL, MODEL.layer4).attribute(images, target=targets, relu_attributions=True)
    return LayerAttribution.interpolate(coarse, images.shape[2:], "bilinear")


def integrated_gradients(images, targets):
    return IntegratedGradients(MODEL).attribute(images, target=targets, n_steps=50, internal_batch_size=BATCH)


methods = {
    "saliency": lambda images, targets: Saliency(MODEL).attribute(images, target=targets, abs=False),
    "integrated_gradients": integrated_gradients,
    "grad_cam": grad_cam,
}
areas = dict.fromkeys(methods, 0.0)
for images, targets in zip(IMAGES.split(BATCH), TARGETS.split(BATCH), strict=True):
    for name, method in methods.items():
        maps = method(images.clone().requires_grad_(), targets).detach().sum(1)
        order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
        left, curve = images.clone(), []
        with torch.inference_mode():
            for step in range(STEPS + 1):
                curve.append(MODEL(left).gather(1, targets[:, None])[:, 0])
                pixels = order[:, step * order.shape[1] // STEPS : (step + 1) * order.shape[1] // STEPS]
                left.flatten(2).scatter_(2, pixels[:, None].expand(-1, 3, -1), 0.0)
        areas[name] += torch.trapezoid(torch.stack(curve, 1), dx=1 / STEPS).sum().item() / len(IMAGES)
print(json.dumps(areas))
