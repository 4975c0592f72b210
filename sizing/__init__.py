"""llmsize: how many GPUs an LLM service needs, how sure that is, and what it costs.

Modules import only from those above them in this order: text, errors, units, frontier, versions, specs, formats, bands, prices, catalog, settings,
attention, reuse, images, drafts, extras, precision, architecture, operation, exchange, operations, beside, memory, roofline, network, kernels, step, intensity, steady_state, stack,
limits, engine, simulation, handover, capacity, cost, break_even, poisson, demand, request, candidates, deployment, load, answer, spread, search, verify,
pooled, disaggregation, verify_pools, curve, rate_curve, pool_curve, advice, compare, sweep, sensitivity, whatif, plan, validation, calibrate, report, cli.
"""

__version__ = "0.1.0"
