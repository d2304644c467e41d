"""Loss terms as pure functions of tensors."""

import torch
from torch import Tensor

# Keeps the logarithm finite where a feature is masked out; far below 1/d for any feature size.
EPS = 1e-8


def l1_distribution(v: Tensor) -> Tensor:
    """Rows clamped at 0 and divided by their sum; a row without mass stays all zero.

    Parameters
    ----------
    v : Tensor
        Shape (B, d).
    """
    positive = v.clamp(min=0)
    return positive / positive.sum(dim=1, keepdim=True).clamp(min=EPS)


def softmax_distribution(v: Tensor) -> Tensor:
    """Softmax over the features of each row, shape (B, d)."""
    return v.softmax(dim=1)


NORMALISERS = {"l1": l1_distribution, "softmax": softmax_distribution}


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of each row, shape (B, d) → (B,), in nats; 0·log 0 = 0."""
    return (p * ((p + EPS).log() - (q + EPS).log())).sum(dim=1)


def masked_features(gradient: Tensor, z: Tensor) -> Tensor:
    """Class-relevant features ReLU(g) ⊙ z (HFMDS-FL, eq. 8), shape (B, d)."""
    return gradient.clamp(min=0) * z


def feature_matching(target: Tensor, features: Tensor, normaliser: str) -> Tensor:
    """L_FM or L_HFM of each image (HFMDS-FL, eqs. 9 and 11).

    Parameters
    ----------
    target, features : Tensor
        Masked features of the real (or hard) and of the synthetic side, shape (B, d).
    normaliser : {"l1", "softmax"}
        How a vector becomes a distribution; the paper does not say.

    Returns
    -------
    Tensor
        Shape (B,), ≥ 0 up to rounding.
    """
    n = NORMALISERS[normaliser]
    return kl_divergence(n(target), n(features))


def hard_features(z: Tensor, prototypes: Tensor, mu: float) -> Tensor:
    """z_h = z + μ(z - z̄_y) (HFMDS-FL, eq. 10), shapes (B, d); μ = 0 returns z exactly."""
    return z + mu * (z - prototypes)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of each image, (B, C, H, W) → (B,)."""
    dh = (x[:, :, 1:, :] - x[:, :, :-1, :]).abs().mean(dim=(1, 2, 3))
    dw = (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().mean(dim=(1, 2, 3))
    return dh + dw


def squared_norm(x: Tensor) -> Tensor:
    """Mean squared pixel of each image, (B, C, H, W) → (B,)."""
    return x.square().mean(dim=(1, 2, 3))


def class_score_gradient(classifier: torch.nn.Module, z: Tensor, y: Tensor) -> Tensor:
    """CAM weights g_z = ∂q^y/∂z, shape (B, d) (HFMDS-FL, eq. 7).

    A single linear layer has the constant gradient W_y; anything else is differentiated, with a
    graph, so that second derivatives reach whatever z depends on.
    """
    if isinstance(classifier, torch.nn.Linear):
        return classifier.weight[y]
    with torch.enable_grad():
        leaf = z if z.requires_grad else z.detach().requires_grad_()
        score = classifier(leaf).gather(1, y[:, None]).sum()
        return torch.autograd.grad(score, leaf, create_graph=z.requires_grad)[0]
