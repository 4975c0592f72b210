"""Money and time: what a demand costs, and what it takes as it varies and grows.

`plan.plan(workloads, rules)` sizes a fleet: `rules` and reserves (`size`), workloads that share GPUs by the hour (`fleet`) on
what is owned or rented (`provision`, `instances`), over time (`growth`, `cloud`), and how sure that is (`uncertainty`).
`bill.cost(question, ways)` prices a service: what it uses (`usage`), in every way to pay (`offers`), by the formulas of
`cost`, and from which load on one way pays (`break_even`). Both search and simulate by `answers.estimate`. `by_rows` does the
same with replicas as they were measured.
"""
