"""The confidence branch and rotation prediction, on small networks that are trained here on handwritten digits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional

from hf_robust.ood_scores import SCORES, score


def network(outputs):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, outputs),
    )  # fmt: skip


def train(model, loss, pictures, targets, *, epochs):
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(pictures)).split(64):
            optimiser.zero_grad()
            loss(model(pictures[rows]), targets[rows]).backward()
            optimiser.step()
    return model.eval()


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    pictures = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(labels)
    inside = torch.tensor([2, 3, 4, 5, 7])  # 0, 1, 6, 8 and 9 look alike upside down
    known = torch.nonzero(torch.isin(labels, inside)).flatten()
    classes = torch.searchsorted(inside, labels[known])
    return pictures[known[:700]], classes[:700], pictures[known[700:]], pictures[~torch.isin(labels, inside)]


def area(name, outputs, held_out, outside):
    """AUROC of a score, held-out digits against pictures from outside; `outputs` gives the column that it reads."""
    with torch.no_grad():
        values = [score(name, **{SCORES[name].needs: outputs(rows).numpy()}) for rows in (held_out, outside)]
    return roc_auc_score([0] * len(held_out) + [1] * len(outside), np.concatenate(values))


def test_a_trained_confidence_branch_is_less_confident_on_noise_than_on_digits(digits):
    pictures, labels, held_out, _ = digits

    def loss(outputs, targets):
        # DeVries and Taylor: hints in half of the rows, and a price on asking for them
        p, c = outputs[:, :5].softmax(dim=1), outputs[:, 5:].sigmoid()
        hint = torch.where(torch.rand_like(c) < 0.5, c, torch.ones_like(c))
        mixed = hint * p + (1 - hint) * functional.one_hot(targets, 5)
        return functional.nll_loss((mixed + 1e-12).log(), targets) - 0.3 * (c + 1e-12).log().mean()

    torch.manual_seed(0)
    noisy = pictures + torch.randn_like(pictures)  # without hard rows the branch is sure of everything
    model = train(network(6), loss, torch.cat([pictures, noisy]), torch.cat([labels, labels]), epochs=10)
    noise = torch.randn(400, 1, 8, 8)
    assert area("confidence_branch", lambda rows: model(rows)[:, 5], held_out, noise) > 0.9


@pytest.fixture(scope="module")
def rotation_network(digits):
    pictures, *_ = digits
    turned = torch.cat([torch.rot90(pictures, r, dims=(2, 3)) for r in range(4)])
    torch.manual_seed(0)
    turns = torch.arange(4).repeat_interleave(len(pictures))
    return train(network(4), functional.cross_entropy, turned, turns, epochs=10)


def test_a_trained_rotation_head_is_less_sure_which_way_up_unseen_digits_are(digits, rotation_network):
    _, _, held_out, outside = digits
    assert area("rotation", rotation_network, held_out, outside) > 0.75


def test_the_mean_over_four_turns_tells_unseen_digits_too(digits, rotation_network):
    _, _, held_out, outside = digits

    def four(rows):
        return torch.stack([rotation_network(torch.rot90(rows, r, dims=(2, 3))) for r in range(4)], dim=1)

    assert area("rotation", four, held_out, outside) > 0.75
