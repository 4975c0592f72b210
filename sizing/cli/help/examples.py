"""The groups of commands in `llmsize --help`, and two or three examples of each command."""

from __future__ import annotations

GROUPS = {
    "Size a service": ("init", "estimate", "compare", "curve", "sweep", "simulate"),
    "Understand an answer": ("explain", "memory", "step", "roofline", "whatif", "import", "validate", "calibrate"),
    "Plan and pay": ("plan", "cost", "report"),
    "Deploy and check": ("deploy", "check"),
    "What is known": ("gpus", "models", "engines", "workloads", "prices", "schema", "config", "mcp", "completion"),
}

EXAMPLES = {
    "estimate": (
        "llmsize estimate chat -g h100-sxm",
        "llmsize estimate -m llama-3.1-70b -g h100-sxm,h200-sxm --isl 2000 --osl 200 \\\n"
        "    --rps 50 --ttft p95:500ms --itl 30ms",
        "llmsize estimate service.yaml -g h100-sxm --gpus 8   # exit code 1: too few",
        "llmsize estimate chat rag agentic -g h100-sxm --format jsonl",
    ),
    "init": ("llmsize init", "llmsize init --answers answers.txt -o service.yaml"),
    "compare": (
        "llmsize compare chat -g h100-sxm,h200-sxm,l40s,mi300x --sort cost",
        "llmsize compare chat --replace 8xh100-sxm -g a100-sxm-80gb,h200-sxm",
    ),
    "curve": (
        "llmsize curve chat -g h100-sxm --tp 2,4",
        "llmsize curve -m llama-3.1-8b -g h100-sxm --isl 2000 --osl 200 \\\n    --ttft p95:500ms",
    ),
    "sweep": (
        "llmsize sweep chat -g h100-sxm --vary osl=100,200,400 --vary rps=10,20,40",
        "llmsize sweep chat -g h100-sxm --vary tp=1,2,4 --format csv > rows.csv",
    ),
    "simulate": (
        "llmsize simulate chat -g h100-sxm --tp 2 --replicas 5 --rps 20",
        "llmsize simulate -m llama-3.1-8b -g h100-sxm --isl 1000 --osl 200 \\\n    --concurrency 64",
        "llmsize simulate -m llama-3.1-8b -g h100-sxm --trace requests.csv",
    ),
    "explain": ("llmsize explain", "llmsize explain ttft", "llmsize explain speculative"),
    "memory": (
        "llmsize memory -m llama-3.1-70b -g h100-sxm --tp 4",
        "llmsize memory -m ./config.json -g l40s --tp 2 --max-model-len 32768",
    ),
    "step": (
        "llmsize step -m llama-3.1-70b -g h100-sxm --tp 4 --decode 64 --context 2048",
        "llmsize step -m llama-3.1-8b -g l40s --prefill 2000",
    ),
    "roofline": (
        "llmsize roofline -m llama-3.1-70b -g h100-sxm --tp 4",
        "llmsize roofline -m llama-3.1-8b -g l40s --batch 1,8,64 --prefill 512,2048",
    ),
    "whatif": ("llmsize whatif rag -g h100-sxm", "llmsize whatif chat -g h100-sxm --no-verify"),
    "import": (
        "llmsize import result.json -g h100-sxm --tp 1 -o measured.csv",
        "llmsize import aiperf.json guidellm.json -m llama-3.1-8b -g l40s \\\n    -o measured.csv",
    ),
    "validate": (
        "llmsize validate measured.csv",
        "llmsize validate measured.csv --by engine,gpu,kind --per-row compared.csv",
    ),
    "calibrate": (
        "llmsize calibrate measured.csv -g h100-sxm -o my-h100.yaml",
        "llmsize calibrate measured.csv -g h100-sxm --json",
    ),
    "plan": (
        "llmsize plan call-centre -g h100-sxm --spare 1 --headroom 20%",
        "llmsize plan chat -g h100-sxm --growth 50%/year --until 2027-12",
        "llmsize plan assistant-and-search   # several services, one fleet",
    ),
    "cost": (
        "llmsize cost chat -g h100-sxm --own hgx-h100",
        "llmsize cost chat -g h100-sxm --cloud aws,lambda --api 1.0,3.0",
    ),
    "report": (
        "llmsize report chat -g h100-sxm,h200-sxm -o report.html",
        "llmsize report service.yaml -g h100-sxm --no-verify -o -",
    ),
    "deploy": (
        "llmsize deploy chat -g h100-sxm --for vllm",
        "llmsize deploy chat -g h100-sxm --for kubernetes > chat.yaml",
        "llmsize deploy chat -g h100-sxm --benchmark aiperf",
    ),
    "check": (
        "llmsize check k8s/deploy.yaml --demand chat --max-utilisation 80%",
        "llmsize check deploy.yaml --demand chat --set demand.requests_per_s=500",
        "llmsize check 'vllm serve llama-3.1-70b -tp 4' -g h100-sxm --replicas 3 \\\n    --demand chat",
    ),
    "gpus": ("llmsize gpus", "llmsize gpus h100-sxm", "llmsize gpus h100-sxm --yaml > my-h100.yaml"),
    "models": ("llmsize models", "llmsize models llama-3.1-70b"),
    "engines": ("llmsize engines", "llmsize engines vllm"),
    "workloads": ("llmsize workloads", "llmsize workloads chat --yaml > service.yaml"),
    "prices": ("llmsize prices", "llmsize prices h100-sxm", "llmsize prices deepseek"),
    "mcp": ("llmsize mcp   # as command and arguments of an agent's configuration",),
    "schema": ("llmsize schema workload > workload.json", "llmsize schema estimate"),
    "config": ("llmsize config", "llmsize config --all", "LLMSIZE_GPU=h100-sxm llmsize config --json"),
    "completion": (
        "source <(llmsize completion bash)          # in ~/.bashrc",
        "source <(llmsize completion zsh)           # in ~/.zshrc, after compinit",
        "llmsize completion fish | source           # in ~/.config/fish/config.fish",
        "llmsize completion man > llmsize.1         # the manual page: man ./llmsize.1",
    ),
}
