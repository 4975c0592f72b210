"""One engine instance on a layout: memory, step times, batching in closed form, capacity."""
