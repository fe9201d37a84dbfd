import json

from problem import BATCH, IMAGES, MODEL, STEPS, TARGETS

import heatproof

methods = ["saliency", {"integrated_gradients": {"steps": 50}}, "grad_cam"]
maps = heatproof.explain(MODEL, IMAGES, TARGETS, methods, batch_size=BATCH)
scores = heatproof.evaluate(
    "deletion_morf", MODEL, IMAGES, TARGETS, maps, steps=STEPS, baseline="zeros", output="logit", batch_size=BATCH
)
print(json.dumps(scores["score"].mean("image").to_series().to_dict()))
