"""Any image file as uint8 pixels: turned as its EXIF says, grey or colour, of one size."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsyn_flwr.errors import UserError

GREY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes without colour; all others count as colour."""


def channels(data: bytes | Path | None, where: str) -> int:
    """1 for a grey image, 3 for one in colour; reads the file's header only."""
    from PIL import Image

    with _opened(data, where) as image:
        assert isinstance(image, Image.Image)
        return 1 if image.mode in GREY else 3


def decode(data: bytes | Path | None, channels: int, size: int, where: str) -> NDArray[np.uint8]:
    """An image file as uint8 (C, H, W).

    The first frame of an animation; 16-bit and floating-point images scaled to 8 bits; CMYK and
    palettes as RGB; transparency dropped; turned upright by EXIF.

    Parameters
    ----------
    data : bytes, Path or None
        The file, or where it lies; None where a table has no image.
    channels : int
        1 (grey) or 3 (RGB): what is returned.
    size : int
        H = W of the result: the shorter side is resized to it (bilinear, antialiased), then the
        middle is cut out. 0 leaves the image as it is.
    where : str
        Names the image in messages.

    Raises
    ------
    UserError
        If there is no file, or it is no image, or a broken one.
    """
    from PIL import Image, ImageOps

    with _opened(data, where) as image:
        try:
            upright = ImageOps.exif_transpose(image)
            eight = _eight_bits(upright).convert("L" if channels == 1 else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise _broken(where) from error
    pixels = np.array(eight)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return _resized(pixels, size) if size else pixels


def _opened(data: bytes | Path | None, where: str):  # type: ignore[no-untyped-def]  # Pillow's own type
    from PIL import Image

    if data is None:
        raise UserError(f"{where}: there is no image; remove the row")
    try:
        return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    except (OSError, ValueError, SyntaxError, TypeError, Image.DecompressionBombError) as error:
        raise _broken(where) from error


def _broken(where: str) -> UserError:
    return UserError(f"{where}: the image cannot be decoded; replace or remove it")


def _eight_bits(image):  # type: ignore[no-untyped-def]
    """Pillow cuts larger values off where it converts; these are scaled instead."""
    from PIL import Image

    if not (image.mode.startswith("I") or image.mode == "F"):
        return image
    values = np.array(image, dtype=np.float64)
    largest = 65535.0 if values.max(initial=0) > 255 else 255.0 if values.max(initial=0) > 1 else 1
    return Image.fromarray(np.rint(values.clip(0, largest) * (255 / largest)).astype(np.uint8))


def _resized(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    import torch
    from torchvision.transforms.v2 import functional as F

    x = F.resize(torch.from_numpy(np.ascontiguousarray(pixels)), [size], antialias=True)
    return F.center_crop(x, [size, size]).numpy()
