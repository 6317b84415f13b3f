"""`torchrun --nproc-per-node 2 transformers_ddp.py OUT`: transformers.Trainer trains, evaluates and predicts.

Each rank writes to OUT/<rank>.json what its model was trained on, and the labels that the Trainer gathered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from common import RANK, train_loader, val_loader
from transformers_options import Classifier, Trainer, arguments

if __name__ == "__main__":
    out = Path(sys.argv[1])
    seen: list[list[int]] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.label_ids.tolist())
        return {}

    settings = arguments(str(out), ddp_backend="gloo")
    with train_loader(2, num_workers=0) as loader, val_loader(2) as val:
        classifier = Classifier()
        trainer = Trainer(classifier, settings, train_dataset=loader, eval_dataset=val, compute_metrics=metrics)
        trainer.train()
        trainer.evaluate()
        trainer.predict(val)
    (out / f"{RANK}.json").write_text(json.dumps({"trained": classifier.trained, "seen": seen}))
    torch.distributed.destroy_process_group()
