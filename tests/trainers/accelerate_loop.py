"""A loop with Hugging Face Accelerate; gradients of two batches at a time, of an epoch's last one by itself."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from common import EPOCHS, Run, classes, main, model, train_loader, val_loader


def train(run: Run) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    with train_loader() as plain, val_loader() as val:
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
        network, optimizer, loader, val = accelerator.prepare(network, optimizer, plain, val)
        assert loader is plain
        accelerator.register_for_checkpointing(loader)
        if run.start:
            accelerator.load_state(str(run.checkpoint(run.start)))
        batch = run.start
        for epoch in range(loader.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for images, labels in loader:
                with accelerator.accumulate(network):
                    accelerator.backward(torch.nn.functional.cross_entropy(network(images), classes(labels)))
                    optimizer.step()
                    optimizer.zero_grad()
                batch += 1
                last = batch % len(loader) == 0
                assert accelerator.sync_gradients == (last or batch % len(loader) % 2 == 0)
                if accelerator.sync_gradients:
                    accelerator.save_state(str(run.checkpoint(batch)))
                if batch % 4 == 0:  # within the train loop, whose place it must leave as it is
                    seen = [accelerator.gather_for_metrics(labels) for _, labels in val]
                    assert torch.cat(seen).tolist() == list(range(7))
                    assert accelerator.gradient_state.end_of_dataloader == last
                run.trained(labels, batch)
        assert not accelerator.gradient_state.in_dataloader
        assert batch == EPOCHS * len(loader)
    run.finished(network)


if __name__ == "__main__":
    main(train)
