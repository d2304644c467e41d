"""Loss terms as pure functions of tensors."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsyn_flwr.compute.device import precision

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


def proximal_gradient(w: Tensor, anchor: Tensor, mu: float) -> Tensor:
    """∇ of FedProx's (μ/2)‖w - w_t‖² (arXiv 1812.06127, eq. 2), shapes (P,): μ(w - w_t).

    The norm is squared; its gradient is linear and vanishes at w_t.
    """
    return mu * (w - anchor)


def contrastive(z: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """MOON's model-contrastive loss of each image (arXiv 2103.16257, eq. 3).

    -log[e^{s⁺/T} / (e^{s⁺/T} + e^{s⁻/T})] = softplus((s⁻ - s⁺)/T), s the cosine similarities.

    Parameters
    ----------
    z, positive, negative : Tensor
        Features under the local, the global and the previous local model, shape (B, d). A vector
        of zeros has similarity 0 to anything.
    temperature : float
        T > 0.

    Returns
    -------
    Tensor
        Shape (B,), > 0; log 2 where both similarities are equal.
    """
    near = F.cosine_similarity(z, positive, dim=1)
    far = F.cosine_similarity(z, negative, dim=1)
    return F.softplus((far - near) / temperature)


# Multiples of the mean squared distance, one Gaussian kernel each.
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def squared_distances(z: Tensor) -> Tensor:
    """‖z_i - z_j‖² of all pairs of rows, (n, d) → (n, n).

    The rows are centred first: then rounding is relative to their spread and not to their length,
    and equal rows are at a distance of 0 (or next to it) instead of rounding noise.
    """
    centred = z - z.detach().mean(dim=0)
    square = centred.square().sum(dim=1)
    with precision(z.device, mixed=False):  # a difference of large numbers: not in bfloat16
        return (square[:, None] + square[None, :] - 2 * centred @ centred.T).clamp(min=0)


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """MMD² of two samples under a sum of five Gaussian kernels, a scalar ≥ 0 up to rounding.

    The biased estimate: mean k(a, a) + mean k(b, b) - 2·mean k(a, b), diagonals included. Kernel
    i is exp(-‖x - y‖²/(s·2^i)), i = -2..2, with s the mean squared distance of all distinct pairs,
    taken as a constant. Where all distances are 0 the value and its gradient are 0.

    Parameters
    ----------
    a, b : Tensor
        Shapes (n, d) and (m, d), n and m ≥ 1.
    """
    n, total = len(a), len(a) + len(b)
    distances = squared_distances(torch.cat([a, b]))
    scale = (distances.detach().sum() / (total * (total - 1))).clamp(min=EPS)
    kernel = torch.stack([(-distances / (scale * f)).exp() for f in BANDWIDTHS]).sum(dim=0)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
