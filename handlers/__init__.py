"""Inside TorchServe's worker: bytes in, answers out. A model's entry file is three lines:

from batchline.handlers import ImageClassifier

class Handler(ImageClassifier):
    '''What it is.'''
"""

from .batch import BatchHandler
from .detect import ObjectDetector
from .errors import BadInput
from .image import ImageClassifier
from .segment import ImageSegmenter
from .text import TextClassifier, TextEmbedder
from .vector import VectorClassifier

__all__ = [
    "BadInput",
    "BatchHandler",
    "ImageClassifier",
    "ImageSegmenter",
    "ObjectDetector",
    "TextClassifier",
    "TextEmbedder",
    "VectorClassifier",
]
