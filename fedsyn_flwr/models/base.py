"""What every model has in common: a trunk, a neck and a classifier."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SplitModel(nn.Module):
    """A classifier cut where the methods cut it.

    ``trunk`` turns images into the last convolution's map, ``neck`` turns the map into the
    feature vector z, ``classifier`` turns z into logits::

        x (B,C,h,w) --trunk--> map (B,c,h',w') --neck--> z (B,d) --classifier--> logits (B,K)

    A model without convolutions has its feature vector (B,d) as its map. No layer changes the map
    or z in place, so a caller may keep them.

    Parameters
    ----------
    trunk, neck, classifier : nn.Module
        The three parts.
    feature_dim : int
        d, the length of z.
    num_classes : int
        K, the number of logits.
    """

    def __init__(
        self,
        trunk: nn.Module,
        neck: nn.Module,
        classifier: nn.Module,
        *,
        feature_dim: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.neck = neck
        self.classifier = classifier
        self.feature_dim = feature_dim
        self.num_classes = num_classes

    @property
    def has_batch_stats(self) -> bool:
        """Whether a BatchNorm layer, and thus running statistics, is inside."""
        return any(isinstance(module, _BatchNorm) for module in self.modules())

    def forward_map(self, x: Tensor) -> Tensor:
        """Images (B,C,h,w) → the last convolution's map (B,c,h',w'), or (B,d) for an mlp."""
        fmap: Tensor = self.trunk(x)
        return fmap

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B,C,h,w) → feature vectors z (B,d)."""
        z: Tensor = self.neck(self.forward_map(x))
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Images (B,C,h,w) → logits (B,K)."""
        logits: Tensor = self.classifier(self.forward_features(x))
        return logits
