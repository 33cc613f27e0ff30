"""``transformers.Trainer``: SBS as a ready optimizer, and a callback at the end of each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from digits_mlp import BATCH_SIZE, EPOCHS, SAVE_AT, digits, finish, network, optimizer_for, options
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments


class Classifier(nn.Module):
    """The network with the loss in it, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits."""
        logits = self.layers(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class NewEpoch(TrainerCallback):
    """Forget averages at the end of an epoch: its beginning comes again after a resume."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Reach through accelerate's wrapper, which hides ``new_epoch``."""
        given["optimizer"].optimizer.new_epoch()


def main(argv: Sequence[str] | None = None) -> str:
    """Train, or resume; return a hash of the weights."""
    chosen = options(argv, __doc__)
    model = Classifier()
    names = ("images", "labels")
    arguments = TrainingArguments(
        output_dir=str(chosen.folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        save_steps=SAVE_AT,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=[dict(zip(names, sample, strict=True)) for sample in digits()],
        # Its learning rate is the optimizer's own: arguments.learning_rate is not used, but the
        # Trainer's schedule (by default linear) is.
        optimizers=(optimizer_for(model, chosen.optimizer), None),
        callbacks=[NewEpoch()] if chosen.optimizer == "sbs" else [],
    )
    checkpoint = str(chosen.folder / f"checkpoint-{SAVE_AT}")
    trainer.train(resume_from_checkpoint=checkpoint if chosen.resume else None)
    return finish(model.layers)


if __name__ == "__main__":
    main()
