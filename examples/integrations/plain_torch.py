"""Plain torch: a compiled network, bfloat16 autocast, a checkpoint in mid-epoch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from digits_mlp import EPOCHS, SAVE_AT, digits, finish, network, optimizer_for, options, order
from torch.nn.functional import cross_entropy


def main(argv: Sequence[str] | None = None) -> str:
    """Train, or resume; return a hash of the weights."""
    chosen = options(argv, __doc__)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = chosen.folder / "checkpoint.pt"
    model = network()
    compiled = torch.compile(model)
    optimizer = optimizer_for(model, chosen.optimizer)
    done = 0
    if chosen.resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    images, labels = digits().tensors
    step = 0
    for epoch in range(EPOCHS):
        for batch in order(epoch):
            step += 1
            if step <= done:
                continue
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(compiled(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if step == SAVE_AT:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step}, checkpoint)
        # The article forgets averages at each epoch; an epoch before the checkpoint is over.
        if chosen.optimizer == "sbs" and step > done:
            optimizer.new_epoch()
    return finish(model)


if __name__ == "__main__":
    main()
