"""The interfaces people already have: transformers' pipeline, scikit-learn's estimators, ONNX."""
