"""Several processes: DDP, or FSDP2 with ``--shard``; torchrun starts them.

``torchrun --nproc-per-node 2 examples/integrations/sharded.py --shard``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits_mlp import EPOCHS, SAVE_AT, digits, finish, network, optimizer_for, options, order
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main(argv: Sequence[str] | None = None) -> str:
    """Train, or resume; return a hash of the weights."""
    given = list(sys.argv[1:] if argv is None else argv)
    shard = "--shard" in given
    chosen = options([word for word in given if word != "--shard"], __doc__)
    checkpoint = chosen.folder / "checkpoint"
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = network()
    if shard:
        mesh = init_device_mesh("cpu", (ranks,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        model = fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    # After sharding, and with the same seed on all ranks: coins belong to the whole tensor.
    optimizer = optimizer_for(model, chosen.optimizer)
    done = 0
    if chosen.resume:
        done = SAVE_AT
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    images, labels = digits().tensors
    step = 0
    for epoch in range(EPOCHS):
        for batch in order(epoch):
            step += 1
            if step <= done:
                continue
            mine = batch[rank::ranks]
            optimizer.zero_grad()
            cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            if step == SAVE_AT:
                weights, state = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": state}, checkpoint_id=checkpoint)
        if chosen.optimizer == "sbs" and step > done:
            optimizer.new_epoch()
    whole = network()
    full = StateDictOptions(full_state_dict=True)
    weights = get_model_state_dict(model, options=full)  # of all ranks
    digest = ""
    if rank == 0:
        whole.load_state_dict(weights)
        digest = finish(whole)
    # gloo's threads must have let go of the gathered tensors before Python ends, or they abort it.
    dist.barrier()
    dist.destroy_process_group()
    return digest


if __name__ == "__main__":
    main()
