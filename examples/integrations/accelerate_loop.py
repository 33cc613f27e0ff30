"""``accelerate``: the same loop on one device or many, with its own checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from digits_mlp import BATCH_SIZE, EPOCHS, SAVE_AT, digits, finish, network, optimizer_for, options
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def main(argv: Sequence[str] | None = None) -> str:
    """Train, or resume; return a hash of the weights."""
    chosen = options(argv, __doc__)
    checkpoint = chosen.folder / "checkpoint"
    # Otherwise the order of the epoch under way is lost in a checkpoint. The seed is that of the
    # order; the coins have a seed of their own, which frameworks do not reach.
    known_order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=True, dataloader_config=known_order)
    model = network()
    loader = DataLoader(digits(), BATCH_SIZE, shuffle=True)
    own = optimizer_for(model, chosen.optimizer)
    model, optimizer, loader = accelerator.prepare(model, own, loader)
    done = 0
    if chosen.resume:
        accelerator.load_state(checkpoint)
        done = SAVE_AT
    for epoch in range(done // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        first = epoch * len(loader)
        batches = accelerator.skip_first_batches(loader, max(done - first, 0))
        for step, (images, labels) in enumerate(batches, max(done, first) + 1):
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
            if step == SAVE_AT:
                accelerator.save_state(checkpoint)
        if chosen.optimizer == "sbs":
            own.new_epoch()  # accelerate's wrapper hides new_epoch and layer_report
    return finish(accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
