"""`python transformers_options.py OUT`: what transformers.Trainer can be told about loaders, with TrainerLoaders.

OUT is JSON: for each case the samples that the model was given and what came of them, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from common import EPOCHS, classes, model, train_loader, val_loader

import gpupipe


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = model()
        self.trained: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.network(pixel_values)
        if self.training:
            self.trained.append(labels.tolist())
        return {"loss": torch.nn.functional.cross_entropy(logits, classes(labels)), "logits": logits}


class Trainer(transformers.Trainer):
    """The overrides that the documentation of gpupipe shows."""

    def get_train_dataloader(self) -> Any:
        return gpupipe.TrainerLoader(self.train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return gpupipe.TrainerLoader(self.eval_dataset if eval_dataset is None else eval_dataset)

    get_test_dataloader = get_eval_dataloader


class NamedEvalSets(Trainer):
    """For an eval_dataset that is a dict."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        chosen = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return gpupipe.TrainerLoader(chosen)


def train(folder: str, kind: type[Trainer] = Trainer, resume: int = 0, **options: Any) -> Any:
    with train_loader(num_workers=0) as loader, val_loader() as val:
        classifier = Classifier()
        trainer = kind(classifier, arguments(folder, **options), train_dataset=loader, eval_dataset=val)
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume else None)
        return classifier.trained


def arguments(folder: str, **options: Any) -> transformers.TrainingArguments:
    options = {"save_strategy": "no", "num_train_epochs": EPOCHS} | options
    return transformers.TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **options,
    )


def evaluated(folder: str, kind: type[transformers.Trainer] = Trainer) -> Any:
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.label_ids.tolist())
        return {"samples": len(prediction.label_ids)}

    with val_loader() as val, val_loader(3) as other:
        trainer = kind(Classifier(), arguments(folder), eval_dataset=val, compute_metrics=metrics)
        trainer.evaluate()
        trainer.evaluate(other)
        predicted = trainer.predict(other)
        return [*seen, predicted.label_ids.tolist(), list(predicted.predictions.shape)]


def of_a_dict(folder: str, kind: type[Trainer]) -> Any:
    with val_loader() as one, val_loader(3) as other:
        trainer = kind(Classifier(), arguments(folder), eval_dataset={"one": one, "other": other})
        return sorted(name for name in trainer.evaluate() if name.endswith("_loss"))


def skipped_or_not(folder: str, **options: Any) -> Any:
    """Training from the checkpoint of 13 batches, the second epoch's second."""
    train(folder, save_strategy="steps", save_steps=13, max_steps=13)
    return train(folder, resume=13, **options)


class ItsOwnLoaders(transformers.Trainer):
    """Without the overrides."""


CASES: dict[str, Callable[[str], Any]] = {
    "plain": train,
    "dataloader_drop_last": lambda folder: train(folder, dataloader_drop_last=True),
    "dataloader_num_workers": lambda folder: train(folder, dataloader_num_workers=2, dataloader_prefetch_factor=3),
    "group_by_length": lambda folder: train(folder, train_sampling_strategy="group_by_length"),
    "split_batches": lambda folder: train(folder, accelerator_config={"split_batches": True, "even_batches": False}),
    "max_steps": lambda folder: train(folder, max_steps=13),
    "resumed": skipped_or_not,
    "ignore_data_skip": lambda folder: skipped_or_not(folder, ignore_data_skip=True),
    "evaluated": evaluated,
    "a dict of eval sets": lambda folder: of_a_dict(folder, NamedEvalSets),
    "a dict of eval sets, not looked up": lambda folder: of_a_dict(folder, Trainer),
    "train, without the overrides": lambda folder: train(folder, ItsOwnLoaders),
    "evaluate, without the overrides": lambda folder: evaluated(folder, ItsOwnLoaders),
}


def outcome(case: Callable[[str], Any]) -> Any:
    with TemporaryDirectory() as folder:
        try:
            return case(folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def main(out: Path) -> None:
    out.write_text(json.dumps({name: outcome(case) for name, case in CASES.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
