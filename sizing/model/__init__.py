"""A model's operations, memory and precisions on the GPUs of a layout."""
