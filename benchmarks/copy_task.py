"""The copy task: does a tiny transformer learn under SBS, and do kinds by role matter?

Eight random tokens out of eight, then the same ones again; the loss is the mean cross-entropy
of the second half, which only attention can predict. Chance is log 8 = 2.08.

    python -m benchmarks.copy_task
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from stochbatch import SBS, param_groups

TOKENS, HALF, WIDTH, BATCH, STEPS, SEEDS = 8, 8, 32, 64, 200, 3
RATES = (0.2, 0.5)


class Copier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(2 * HALF, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def loss_of(model: nn.Module, generator: torch.Generator) -> Tensor:
    half = torch.randint(TOKENS, (BATCH, HALF), generator=generator)
    tokens = torch.cat((half, half), dim=1)
    predicted = model(tokens[:, :-1])[:, HALF - 1 :]
    return nn.functional.cross_entropy(predicted.flatten(0, 1), half.flatten())


OPTIMIZERS: dict[str, Callable[[nn.Module, float], torch.optim.Optimizer]] = {
    "SGD": lambda model, lr: torch.optim.SGD(model.parameters(), lr),
    "SGD, half the rate": lambda model, lr: torch.optim.SGD(model.parameters(), lr / 2),
    "SBS, kinds by shape": lambda model, lr: SBS(model.parameters(), lr),
    "SBS, kinds by role": lambda model, lr: SBS(param_groups(model), lr),
    "SBS, lambd = 0": lambda model, lr: SBS(model.parameters(), lr, lambd=0.0),
}


def final_loss(name: str, lr: float, seed: int) -> float:
    """Return the mean loss of the last ten steps, each on new sequences."""
    torch.manual_seed(seed)
    model = Copier()
    optimizer = OPTIMIZERS[name](model, lr)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return statistics.fmean(losses[-10:])


if __name__ == "__main__":
    for lr, name in product(RATES, OPTIMIZERS):
        losses = [final_loss(name, lr, seed) for seed in range(SEEDS)]
        each = ", ".join(f"{loss:.2f}" for loss in losses)
        print(f"lr {lr}  {name:20} {statistics.fmean(losses):.2f}  ({each})", flush=True)
