"""What is known of every dataset before a single byte of it is read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetSpec:
    """The fixed facts of one dataset.

    Attributes
    ----------
    name : str
        Name used in the configuration.
    hub : str or None
        Repository on the Hugging Face Hub; None for embedded data.
    image_column, label_column : str
        Column names on the Hub.
    num_classes, channels, size : int
        C >= 2; 1 or 3; native height = width in pixels.
    mean, std : tuple of float
        Per channel, of pixels in [0, 1].
    augment : bool
        Whether random crop and flip suit the images (a flipped digit is another sign).
    natural_column : str or None
        Column that names the natural client of a row.
    test_split : str or None
        None when only a train split is published; then a fixed tenth of its rows is held out.
    config : str or None
        Hub configuration, which is also the folder its parquet files lie in.
    summary : str
        One line for listings.
    """

    name: str
    hub: str | None
    image_column: str
    label_column: str
    num_classes: int
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    summary: str
    augment: bool = False
    natural_column: str | None = None
    train_split: str = "train"
    test_split: str | None = "test"
    config: str | None = None


_SPECS = (
    DatasetSpec(
        name="digits",
        hub=None,
        image_column="image",
        label_column="label",
        num_classes=10,
        channels=1,
        size=8,
        mean=(0.3053,),
        std=(0.3759,),
        summary="scikit-learn's 1,797 handwritten digits, 8x8 grey, embedded (no network)",
    ),
    DatasetSpec(
        name="mnist",
        hub="ylecun/mnist",
        image_column="image",
        label_column="label",
        num_classes=10,
        channels=1,
        size=28,
        mean=(0.1307,),
        std=(0.3081,),
        config="mnist",
        summary="MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey",
    ),
    DatasetSpec(
        name="fashion-mnist",
        hub="zalando-datasets/fashion_mnist",
        image_column="image",
        label_column="label",
        num_classes=10,
        channels=1,
        size=28,
        mean=(0.2860,),
        std=(0.3530,),
        config="fashion_mnist",
        summary="Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28x28 grey",
    ),
    DatasetSpec(
        name="cifar10",
        hub="uoft-cs/cifar10",
        image_column="img",
        label_column="label",
        num_classes=10,
        channels=3,
        size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        augment=True,
        config="plain_text",
        summary="CIFAR-10: 50,000 + 10,000 photographs in 10 classes, 32x32 colour",
    ),
    DatasetSpec(
        name="cifar100",
        hub="uoft-cs/cifar100",
        image_column="img",
        label_column="fine_label",
        num_classes=100,
        channels=3,
        size=32,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment=True,
        config="cifar100",
        summary="CIFAR-100: 50,000 + 10,000 photographs in 100 classes, 32x32 colour",
    ),
    DatasetSpec(
        name="svhn",
        hub="ufldl-stanford/svhn",
        image_column="image",
        label_column="label",
        num_classes=10,
        channels=3,
        size=32,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        config="cropped_digits",
        summary="SVHN: 73,257 + 26,032 house-number digits, 32x32 colour",
    ),
    DatasetSpec(
        name="mnist-m",
        hub="Mike0307/MNIST-M",
        image_column="image",
        label_column="label",
        num_classes=10,
        channels=3,
        size=32,
        mean=(0.4578, 0.4617, 0.4076),
        std=(0.2488, 0.2328, 0.2555),
        summary="MNIST-M: MNIST digits blended into photographs, 32x32 colour",
    ),
    DatasetSpec(
        name="femnist",
        hub="flwrlabs/femnist",
        image_column="image",
        label_column="character",
        num_classes=62,
        channels=1,
        size=28,
        mean=(0.9637,),
        std=(0.1592,),
        natural_column="writer_id",
        test_split=None,
        summary="FEMNIST: 814,277 characters by 3,597 writers, 28x28 grey; a tenth held out",
    ),
)

DATASETS: dict[str, DatasetSpec] = {spec.name: spec for spec in _SPECS}
