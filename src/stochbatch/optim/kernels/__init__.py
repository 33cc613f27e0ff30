"""The step of SBS, three ways: plain torch, ``torch.compile``, C++."""
