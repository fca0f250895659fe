from batchline.handlers import VectorClassifier


class Handler(VectorClassifier):
    """A handwritten digit from 64 grey levels, 0 (paper) to 16 (ink), row by row."""
