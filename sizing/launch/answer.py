"""An answer as the deployment to start: the replicas of each pool, with every setting that the estimate uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sizing.answers.answer import Answer, Pool
from sizing.catalog.files import checked, expanded
from sizing.catalog.models import CONFIG_FILE, FoundModel, load_model
from sizing.catalog.profiles import load_gpu
from sizing.catalog.shelf import is_path, only
from sizing.launch.terms import LOW_LATENCY, Args, Dialect, dialect_of, of_nodes, terms_of, write
from sizing.model.architecture import SIZES
from sizing.model.operations import dispatches
from sizing.model.precision import SIXTEEN_BIT, requested
from sizing.question.question import Question
from sizing.replica.replica import Replica
from sizing.specs.errors import InputError
from sizing.specs.gpu import GpuType
from sizing.specs.launch import Launched, LaunchFacts
from sizing.specs.workload import Serving

AS_ASKED = (  # serving fields of a workload that are written only if stated
    "kv_cache_bytes", "max_total_tokens", "enforce_eager", "cpu_offload_gb", "pp_layers", "language_model_only", "limit_mm_per_prompt", "redundant_experts",
    "mamba_full_memory_ratio", "max_mamba_cache_size",
)  # fmt: skip


MOST_NAME = 50  # characters of a name; a label may have 63


class Checkpoints(NamedTuple):
    """Checkpoints that the question does not name: that of the model in its precision, and that of the draft model."""

    model: str | None = None
    draft: str | None = None


class Started(NamedTuple):
    """The replicas of one pool to start, with the nodes and GPUs of each replica, and the engine's arguments.

    The first node serves. The other nodes start with the arguments `further`, which is None if a cluster finds them itself.
    `holds` says which model its checkpoint holds, in which precision, where the checkpoint's name does not.
    """

    launched: Launched
    gpu_type: GpuType
    gpus: int
    dialect: Dialect
    args: Args
    nodes: int = 1
    further: Args | None = None
    holds: Mapping[str, str] = {}

    @property
    def command(self) -> tuple[str, ...]:
        """The first words of the engine's command, including the model."""
        return tuple(word.replace("{model}", self.launched.model) for word in self.dialect.engine.command)

    @property
    def launcher(self) -> tuple[str, ...]:
        """The words that start the engine's processes on all nodes at once; empty if each node has its own command."""
        sizes = {"nodes": self.nodes, "node_gpus": self.node_gpus, "gpus": self.gpus}
        return tuple(word.format(**sizes) for word in self.dialect.engine.launcher) if self.nodes > 1 else ()

    @property
    def node_gpus(self) -> int:
        """The GPUs of each node."""
        return self.gpus // self.nodes

    def commands(self, *, first: bool = True) -> tuple[tuple[str, ...], ...]:
        """The commands of the first node, or of a further one, in order. Their words still have the placeholders of nodes."""
        engine, args = self.dialect.engine, self.args if first else self.further
        own = () if args is None else ((*self.launcher, *self.command, *args.words, *(engine.host if first else ())),)
        joined = self.nodes > 1 and self.further is None and engine.cluster
        return ((engine.cluster.first if first else engine.cluster.further), *own) if joined and engine.cluster else own

    @property
    def image(self) -> str:
        """The engine's own container image in this version for these GPUs."""
        engine = self.dialect.engine
        image = engine.vendor_images.get(self.gpu_type.gpu.vendor, engine.image)
        return image.replace("{version}", self.dialect.version)

    @property
    def profile(self) -> str:
        """The GPU type that others know: that of its profile, or of the one that its profile extends by own runs."""
        base = self.gpu_type.gpu.extends
        return self.gpu_type.id if base is None else base if is_path(base) else load_gpu(base).id

    @property
    def card(self) -> str:
        """The profile of the card, also if its GPUs are slices of the card."""
        return self.profile.partition(":")[0]

    @property
    def resource(self) -> str:
        """The Kubernetes resource name of its GPUs."""
        facts, sliced = only(LaunchFacts), self.profile.partition(":")[2]
        return f"{facts.slice_resource}{sliced}" if sliced else facts.resources[self.gpu_type.gpu.vendor]

    @property
    def drafts(self) -> str | None:
        """Its speculative decoding with the acceptance that the question states, which no flag does; None without one."""
        spoken = self.launched.speculative
        return None if spoken is None or not spoken.states_acceptance else str(spoken)

    @property
    def name(self) -> str:
        """Its name, with the role for one of two pools."""
        role = self.launched.role
        return self.launched.name if role == "whole" else f"{self.launched.name}-{role}"


def started(answer: Answer, question: Question, checkpoints: Checkpoints = Checkpoints()) -> tuple[Started, ...]:  # noqa: B008 - a constant
    """The parts to start for an answer, one for each pool. Raises InputError if the engine version lacks a flag."""
    engine = question.service.engine
    dialect = dialect_of(engine.name, engine.title, question.service.engine_version)
    return tuple(_pool(pool, question, dialect, checkpoints, separate=answer.separate) for pool in answer.pools)


def _pool(pool: Pool, question: Question, dialect: Dialect, checkpoints: Checkpoints, *, separate: bool) -> Started:
    replica, service = pool.replica, question.service
    _check(question, dialect)
    model, precision = _checkpoint(pool, question, dialect, checkpoints.model)
    spoken = question.service.optimisations.speculative
    extras = replica.service.extras.speculation
    if spoken is not None and extras is not None:
        spoken = spoken.model_copy(update={"tokens": extras.tokens})
    stated = {
        "name": as_label(question.origin.workload_name or service.model.name.rpartition("/")[2]),
        "model": model,
        "gpu": replica.gpu_type.id,
        "replicas": pool.count,
        "precision": precision,
        "kv_precision": _cache(pool, question, dialect, model),
        "serving": _serving(pool, question, dialect),
        "speculative": spoken,
        "lora": question.service.optimisations.lora,
        "role": replica.service.phase,
        "connector": only(LaunchFacts).connector if separate else None,
        "draft_checkpoint": checkpoints.draft,
    }
    launched = _launched(stated)
    nodes = _nodes(replica)
    terms, beside = terms_of(launched, dialect), of_nodes(replica.layout, nodes, dialect)
    if service.model.pooled:
        terms["pooling"] = "pooling"
        if service.task == "classify" and not service.model.encoder and dialect.writes("convert"):
            terms["convert"] = service.task  # else the engine makes the model embed
    further = None if beside.further is None else write(dialect, {**terms, **beside.further})
    args = write(dialect, {**terms, **beside.first})
    holds = {} if checkpoints.model is None else _held_by(checkpoints.model, pool, question)
    return Started(launched, replica.gpu_type, replica.layout.gpus, dialect, args, nodes, further, holds)


def _held_by(checkpoint: str, pool: Pool, question: Question) -> dict[str, str]:
    """The model that a named checkpoint holds, and its precision; empty if the name says both."""
    asked, wanted = question.origin.workload.model, pool.replica.precision
    model = asked if is_path(asked) else question.service.model.name
    said = {"model": model, **({} if wanted is None else {"precision": wanted})}
    try:
        found = load_model(checkpoint)
    except InputError:
        return said
    own = found.precision or found.spec.quantisation.precision
    return {} if found.id == load_model(asked).id and wanted in (None, own) else said


def at_rank(question: Question) -> Question:
    """The question with its adapters at the next rank that the engine's flag takes, whose memory the engine then keeps."""
    service = question.service
    lora, held = service.optimisations.lora, service.extras.adapters
    if lora is None or held is None:
        return question
    row = dialect_of(service.engine.name, service.engine.title, service.engine_version).writes("lora_rank")
    ranks = () if row is None else (each for each in sorted(row.choices) if each >= lora.rank)
    rank = next(iter(ranks), lora.rank)
    optimisations = service.optimisations.model_copy(update={"lora": lora.model_copy(update={"rank": rank})})
    extras = replace(service.extras, adapters=held._replace(rank=rank))
    return question.with_(optimisations=optimisations, extras=extras)


CHECKPOINT = "its name on the Hugging Face Hub, or its folder"
OPTION_OF = {"model": "--checkpoint", "draft_checkpoint": "--draft-model"}


def _launched(data: dict[str, object]) -> Launched:
    """The validated deployment. Raises InputError for more replicas than allowed, and for a checkpoint without a name."""
    return checked(Launched, data, lambda path: OPTION_OF.get(str(path[0]), str(path[0])))


def _nodes(replica: Replica) -> int:
    """The usual servers that a replica needs. Raises InputError if its GPUs can't be divided equally among them."""
    gpus, node = replica.layout.gpus, replica.gpu_type.gpu.datasheet.node.gpus
    nodes = -(-gpus // node)
    if gpus % nodes:
        what = f"a replica of {gpus} GPUs does not take the same number on each of {nodes} nodes of {node}"
        raise InputError(what, field="deploy", allowed=f"layouts of a multiple of {nodes} GPUs")
    return nodes


def as_label(text: str) -> str:
    """A name that Kubernetes and Compose accept: lower case letters, digits and hyphens, with room for a role at the end."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:MOST_NAME].strip("-")
    return found or "llm"


def _serving(pool: Pool, question: Question, dialect: Dialect) -> Serving:
    """The engine settings of the answer: the stated settings, and the defaults that its prediction uses."""
    replica, asked = pool.replica, question.service.serving
    settings, layout = replica.settings, replica.layout
    chosen = dialect.engine.states("all2all_backend") and layout.dp > 1 and layout.ep > 1
    sizes = {name: getattr(layout, name) for name in SIZES if getattr(layout, name) > 1 or name == "tp"}
    return Serving(
        engine=f"{question.service.engine.name}:{question.service.engine_version}",
        **sizes,
        **{name: value for name in AS_ASKED if (value := getattr(asked, name)) is not None},
        all2all_backend=settings.all2all_backend if chosen else asked.all2all_backend,
        memory_fraction=settings.memory_fraction,
        max_model_len=question.service.max_model_len,
        max_num_seqs=_most_running(pool, dialect),
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=None if question.service.model.encoder else settings.prefix_caching,
    )


def _most_running(pool: Pool, dialect: Dialect) -> int:
    """The most sequences of a rank: the engine's, or as many as it may send to experts in a step with low latency."""
    replica, most, row = pool.replica, pool.replica.settings.max_num_seqs, dialect.writes("dispatch_tokens")
    if (
        row is None
        or not dispatches(replica.layout, replica.settings)
        or replica.settings.all2all_backend != LOW_LATENCY
    ):
        return most
    drafts = replica.service.extras.speculation
    tokens, sizes = 1 + (drafts.tokens if drafts is not None else 0), dialect.engine.dispatch_sizes
    needed = tokens * pool.capacity.decoding / replica.layout.dp
    return min(most, next((size for size in sizes if size >= needed), sizes[-1]) // tokens)


def _checkpoint(pool: Pool, question: Question, dialect: Dialect, stated: str | None) -> tuple[str, str | None]:
    """The checkpoint to load, and the precision that the engine converts it to; None for the checkpoint's own precision.

    Raises InputError if the precision needs a checkpoint without a known name.
    """
    asked, service, wanted = question.origin.workload.model, question.service, pool.replica.precision
    if stated is not None:
        return stated, None
    found, path = load_model(asked), expanded(asked)
    if found.path in (path, path / CONFIG_FILE):
        name = _of_file(path, found)
    else:
        name = asked if "/" in asked else service.model.name
    stored, sparse = service.model.quantisation, service.optimisations.sparsity
    own = wanted in (None, found.precision) or requested(stored, wanted) == stored
    if own and sparse is None:
        return name, None
    row = dialect.writes("precision")
    plain = service.model.quantisation.precision in SIXTEEN_BIT and found.precision in (None, *SIXTEEN_BIT)
    if row is not None and plain and wanted in row.values and sparse is None:  # the engine converts while it loads
        return name, wanted
    kind = f"in {wanted}" if sparse is None else f"with {sparse} sparsity"
    what = f"a checkpoint of {service.model.name} {kind} is needed, whose name the question does not say"
    raise InputError(what, field="--checkpoint", allowed=CHECKPOINT)


def _of_file(path: Path, found_model: FoundModel) -> str:
    """The checkpoint of a model that was given as a folder or a file.

    Raises InputError for a file that is in no checkpoint's folder.
    """
    if path != found_model.path:
        return str(path)
    if path.name == CONFIG_FILE and path.parent.name not in ("", ".."):
        return str(path.parent)
    if found_model.facts is not None and "/" in found_model.facts.name:
        return found_model.facts.name
    what = f"{path} describes the model, but an engine starts from a checkpoint"
    raise InputError(what, field="--checkpoint", allowed=CHECKPOINT)


def _cache(pool: Pool, question: Question, dialect: Dialect, checkpoint: str) -> str:
    """The precision of the KV cache to state: that of the prediction where `auto` of the checkpoint would be another.

    Raises InputError if the engine has no word for it.
    """
    stated, predicted = question.service.kv_precision, pool.replica.plan.kv_format
    if question.service.model.encoder:  # it keeps none
        return "auto"
    if stated != "auto":
        return stated
    try:
        found = load_model(checkpoint)
    except InputError:  # a checkpoint that no profile describes
        return stated
    stored, unstated = found.spec.quantisation.kv_precision, pool.replica.settings.auto_cache
    own = stored or unstated or found.spec.activation_precision
    if own == predicted or {own, predicted} <= set(SIXTEEN_BIT):
        return stated
    row = dialect.writes("kv_precision")
    if row is None or (row.values and predicted not in row.values):
        what = (
            f"{dialect.title} {dialect.version} has no word for the {predicted.upper()} KV cache of the prediction, "
            f"and {checkpoint} states {own.upper()}"
        )
        raise InputError(what, field="--checkpoint", remedy=f"use it with --kv-precision {own}")
    return predicted


def _check(question: Question, dialect: Dialect) -> None:
    lora, taken = question.service.optimisations.lora, at_rank(question).service.optimisations.lora
    if lora is not None and taken is not None and taken.rank > lora.rank:
        what = f"{dialect.title} {dialect.version} holds adapters of rank {lora.rank} in slots of rank {taken.rank}"
        raise InputError(what, field="--lora", allowed=str(taken))
    if question.service.model.pooled and not dialect.engine.states("pooling"):
        what = f"{dialect.title} has no flag that starts what generates nothing"
        raise InputError(what, field="--task", allowed="generate, or --engine vllm or sglang")
    if question.service.optimisations.kv_offload is not None:
        what = "the size of the cache in host memory is not part of the question, so no flag states it"
        raise InputError(what, field="--kv-offload", remedy="leave it out")
    if question.service.serving.offload_backend == "prefetch":
        what = "engines take the groups of layers whose weights are fetched ahead, and the question says their GiB"
        raise InputError(what, field="--offload-backend", allowed="uva, or without it")
