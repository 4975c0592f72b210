"""The vocabulary: frozen, validated types for GPUs, engines, models and workloads. No logic, no files."""
