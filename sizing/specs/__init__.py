"""The vocabulary: frozen, validated types for GPUs, engines, models and workloads. No files, and no rule but what follows from fields of one record."""
