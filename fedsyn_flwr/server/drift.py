"""How far a round's clients drift apart, measured while their models come and go."""

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.server.averaging import PIECE

Vector = NDArray[np.float32]


class Drift:
    """Variance among a round's client updates Δ_k = w_k - w_t (MrTF, arXiv 2305.04201, Fig. 3).

    Σ p_k ‖Δ_k - Δ̄‖² = Σ p_k ‖Δ_k‖² - ‖Δ̄‖² needs one number per client and no client's model; p_k
    are the weights of the average. Trainable parameters only.

    Parameters
    ----------
    origin : float32 (P,)
        w_t, which the clients got.
    """

    def __init__(self, origin: Vector) -> None:
        self.origin = origin
        self.squares = self.weight = 0.0

    def add(self, w: Vector, weight: float) -> None:
        """Count a client's model w_k, shape (P,), with weight p_k > 0."""
        self.squares += weight * squared_distance(w, self.origin)
        self.weight += weight

    def metrics(self, mean: Vector) -> dict[str, float]:
        """The round's variance, given the average model w̄ (P,); after at least one client.

        Returns
        -------
        dict
            ``drift/update_variance``, Σ p_k ‖Δ_k - Δ̄‖² ≥ 0, and ``drift/relative_variance``, that
            over ‖Δ̄‖²: above 1 the clients disagree more than they have in common. The latter is
            left out where the average did not move.
        """
        moved = squared_distance(mean, self.origin)
        variance = max(0.0, self.squares / self.weight - moved)
        relative = {"drift/relative_variance": variance / moved} if moved else {}
        return {"drift/update_variance": variance, **relative}


def squared_distance(a: Vector, b: Vector) -> float:
    """‖a - b‖² of two vectors (P,): float32 inside a piece, float64 over the pieces."""
    total = 0.0
    for start in range(0, len(a), PIECE):
        difference = a[start : start + PIECE] - b[start : start + PIECE]
        total += float(np.dot(difference, difference))
    return total
