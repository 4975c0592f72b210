"""Fleet plans and costs.

`plan.plan(workloads, rules)` sizes a fleet. It uses `rules`, `size` (reserves), `fleet` (workloads that share GPUs by the
hour), `provision` (owned or rented GPUs), `growth` and `cloud` (changes over time), and `uncertainty`.
`cost.cost(question, ways)` prices a service. It uses `usage` (load and utilisation), `offers` (the ways to pay), `tco` (the
formulas) and `break_even` (the load from which one way is cheaper). Both search and simulate with `answers.estimate`.
`measured` plans and prices measured replicas instead of predicted ones.
"""
