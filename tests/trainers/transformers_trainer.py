"""transformers.Trainer with its loaders from the documented overrides; gradients of two batches at a time."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from common import EPOCHS, Run, classes, main, model, train_loader, val_loader

import gpupipe


class Classifier(torch.nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.network = model()
        self.run = run
        self.batch = run.start

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(pixel_values)
        if self.training:
            self.batch += 1
            self.run.trained(labels, self.batch)
        return {"loss": torch.nn.functional.cross_entropy(logits, classes(labels)), "logits": logits}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self) -> Any:
        return gpupipe.TrainerLoader(self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return gpupipe.TrainerLoader(eval_dataset or self.eval_dataset)


def train(run: Run) -> None:
    seen = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.label_ids.tolist())
        return {"samples": len(prediction.label_ids)}

    with train_loader() as loader, val_loader() as val:
        classifier = Classifier(run)
        arguments = transformers.TrainingArguments(
            str(run.folder),
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            num_train_epochs=EPOCHS,
            gradient_accumulation_steps=2,
            save_steps=1,
            eval_strategy="epoch",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(classifier, arguments, train_dataset=loader, eval_dataset=val, compute_metrics=metrics)
        epoch, batch = divmod(run.start, len(loader))
        updates = epoch * -(-len(loader) // 2) + batch // 2
        trainer.train(resume_from_checkpoint=str(run.checkpoint(updates)) if run.start else None)
    assert trainer.state.epoch == EPOCHS
    assert classifier.batch == EPOCHS * len(loader)
    assert seen
    assert all(labels == list(range(7)) for labels in seen)
    run.finished(classifier)


if __name__ == "__main__":
    main(train)
