from batchline.handlers import ImageClassifier


class Handler(ImageClassifier):
    """EfficientNet-Lite0 on ImageNet-1k."""
