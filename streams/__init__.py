"""The Faust app: one module per processor, over pure detectors."""
