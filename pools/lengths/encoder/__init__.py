"""A trained encoder that reads prompts: trained with PyTorch, kept as versions, served by ONNX Runtime."""
