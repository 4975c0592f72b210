"""Services of Docker Compose: each replica reserves its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.catalog.shelf import only
from sizing.launch.answered import Started
from sizing.launch.kubernetes import GPU, SETTINGS, documents, mounted
from sizing.specs.launch import LaunchFacts


def project(parts: Sequence[Started]) -> str:
    """The services of all parts as one file."""
    content: dict[str, object] = {"services": {part.name: _service(part) for part in parts}}
    files = {
        part.name: {"content": part.args.file} for part in parts if part.args.file is not None
    }  # Compose writes them into the containers
    if files:
        content["configs"] = files
    return documents((content,))


def _service(part: Started) -> dict[str, object]:
    facts, engine = only(LaunchFacts), part.dialect.engine
    device = {"driver": part.gpu_type.gpu.vendor.lower(), "count": part.gpus, "capabilities": ["gpu"]}
    mount = (
        {}
        if part.args.file is None or engine.file is None
        else {"configs": [{"source": part.name, "target": f"{SETTINGS}/{engine.file.name}"}]}
    )
    probe = f"curl -fsS http://localhost:{engine.port}{engine.health}"
    return {
        "image": part.image,
        "entrypoint": list(part.command),
        "command": [mounted(word, part) for word in (*part.args.words, *engine.host)],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **dict(part.args.env)},
        "labels": {GPU: part.gpu_type.id},
        "expose": [str(engine.port)],
        "shm_size": facts.shared_memory.replace("Gi", "gb"),
        **mount,
        "healthcheck": {
            "test": ["CMD-SHELL", probe],
            "interval": f"{facts.probe_period_s}s",
            "retries": facts.probe_failures,
            "start_period": f"{facts.start_period_s * facts.start_failures}s",
        },
        "deploy": {"replicas": part.launched.replicas, "resources": {"reservations": {"devices": [device]}}},
    }
