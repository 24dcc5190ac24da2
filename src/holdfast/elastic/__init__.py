"""PyTorch's elastic API on Holdfast: the same module names under another prefix."""
