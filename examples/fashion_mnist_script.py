"""Writes fashion_mnist_script.pt, the features that fashion_mnist_script.json trains further: a module of PyTorch's, exported.

    python3 examples/fashion_mnist_script.py        (Debian's python3-torch)
"""
import pathlib

import torch


class Features(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(image)))
        return torch.relu(self.second(x)).flatten(1)


torch.manual_seed(7)
torch.jit.script(Features()).save(str(pathlib.Path(__file__).with_suffix(".pt")))
