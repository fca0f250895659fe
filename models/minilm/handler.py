from batchline.handlers import TextEmbedder


class Handler(TextEmbedder):
    """all-MiniLM-L6-v2 sentence embeddings: 384 numbers of unit length."""
