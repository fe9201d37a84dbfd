import json

import torch
from problem import BATCH, IMAGES, MODEL, STEPS, TARGETS
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget


def gradients(images, targets):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(MODEL(images).gather(1, targets[:, None]).sum(), images)[0]


def integrated_gradients(images, targets):
    # The library does not compute gradients with respect to the image, so this is a midpoint rule.
    steps = [gradients(images * (step + 0.5) / 50, targets) for step in range(50)]
    return (images * torch.stack(steps).mean(0)).sum(1)


def grad_cam(images, targets):
    with GradCAM(MODEL, [MODEL.layer4]) as method:
        return torch.from_numpy(method(images, [ClassifierOutputTarget(target) for target in targets.tolist()]))


methods = {
    "saliency": lambda images, targets: gradients(images, targets).sum(1),
    "integrated_gradients": integrated_gradients,
    "grad_cam": grad_cam,
}
areas = dict.fromkeys(methods, 0.0)
for images, targets in zip(IMAGES.split(BATCH), TARGETS.split(BATCH), strict=True):
    for name, method in methods.items():
        order = method(images, targets).flatten(1).argsort(dim=1, descending=True, stable=True)
        left, curve = images.clone(), []
        with torch.inference_mode():
            for step in range(STEPS + 1):
                curve.append(MODEL(left).gather(1, targets[:, None])[:, 0])
                pixels = order[:, step * order.shape[1] // STEPS : (step + 1) * order.shape[1] // STEPS]
                left.flatten(2).scatter_(2, pixels[:, None].expand(-1, 3, -1), 0.0)
        areas[name] += torch.trapezoid(torch.stack(curve, 1), dx=1 / STEPS).sum().item() / len(IMAGES)
print(json.dumps(areas))
