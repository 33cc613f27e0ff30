"""Lightning: a module whose optimizer is SBS, and a loader that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning
import torch
from digits_mlp import EPOCHS, SAVE_AT, digits, finish, network, optimizer_for, options, order
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn.functional import cross_entropy


class Loader:
    """Batches of digits; Lightning saves their ``state_dict`` to resume in mid-epoch."""

    def __init__(self) -> None:
        self.images, self.labels = digits().tensors
        self.epoch = self.batch = 0

    def __len__(self) -> int:
        return len(order(0))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.batch == len(self):  # Lightning stops at the last batch, not after it
            self.epoch, self.batch = self.epoch + 1, 0
        for chosen in order(self.epoch)[self.batch :]:
            self.batch += 1
            yield self.images[chosen], self.labels[chosen]

    def state_dict(self) -> dict[str, int]:
        """Return where the training is."""
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue there."""
        self.epoch, self.batch = state["epoch"], state["batch"]


class Classifier(lightning.LightningModule):
    """A network with its loss and its optimizer."""

    def __init__(self, optimizer: str) -> None:
        super().__init__()
        self.layers = network()
        self.chosen = optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return cross_entropy(self.layers(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer, made from the module itself."""
        return optimizer_for(self.layers, self.chosen)

    def on_train_epoch_end(self) -> None:
        """Forget averages, as the article does; Lightning's wrapper hides ``new_epoch``."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        if self.chosen == "sbs":
            optimizer.new_epoch()


def main(argv: Sequence[str] | None = None) -> str:
    """Train, or resume; return a hash of the weights."""
    chosen = options(argv, __doc__)
    saver = ModelCheckpoint(
        chosen.folder, "{step}", every_n_train_steps=SAVE_AT, save_top_k=-1, save_weights_only=False
    )
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(chosen.optimizer)
    path = chosen.folder / f"step={SAVE_AT}.ckpt" if chosen.resume else None
    trainer.fit(model, Loader(), ckpt_path=path)
    return finish(model.layers)


if __name__ == "__main__":
    main()
