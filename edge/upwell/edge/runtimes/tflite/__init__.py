"""LiteRT and TFLite."""
