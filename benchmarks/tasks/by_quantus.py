import json

import numpy as np
import quantus
from problem import BATCH, IMAGES, MODEL, STEPS, TARGETS

images, targets, size = IMAGES.numpy(), TARGETS.numpy(), IMAGES.shape[-1]
methods = {
    "saliency": {"method": "Saliency", "abs": False},
    "integrated_gradients": {"method": "IntegratedGradients", "n_steps": 50, "internal_batch_size": BATCH},
    "grad_cam": {"method": "LayerGradCam", "gc_layer": "model.layer4", "interpolate": (size, size)},
}
# The features per step must divide the pixels, so that three steps are one step of the task.
flipping = quantus.PixelFlipping(
    features_in_step=size**2 // STEPS, normalise=False, perturb_baseline=0.0, disable_warnings=True
)
areas = {}
for name, options in methods.items():
    maps = []
    for low in range(0, len(images), BATCH):
        part = slice(low, low + BATCH)
        maps.append(quantus.explain(MODEL, images[part], targets[part], normalise=False, **options))
    maps = np.concatenate(maps).sum(1, keepdims=True).repeat(3, 1)
    curves = flipping(
        MODEL, images, targets, maps, channel_first=True, softmax=False, batch_size=BATCH, model_predict_kwargs={}
    )
    intact = np.concatenate([MODEL(part).detach().numpy() for part in IMAGES.split(BATCH)])
    curves = np.column_stack([intact[range(len(images)), targets], np.array(curves)[:, 2::3]])
    areas[name] = np.trapezoid(curves, dx=1 / STEPS, axis=1).mean().item()
print(json.dumps(areas))
