"""Reports: each file turns the answer of one command into a `formats.view.Document`, which any format can write.

Nothing here prints. The file of a command has these parts, in this order (`step.py` and `memory.py` are short examples):

1. Record types: named tuples of plain values. The fields are named as in JSON. The main record ends with the field `schema`.
2. `record(answer, ...) -> Record` fills the record. It raises InputError where the library refuses something.
3. `rows(record) -> Rows` makes the CSV rows with `rows_of(records, columns, labels)`. Columns are field names or quantities.
4. Columns, each a `Quantity`. Shared ones come from `parts.quantities`; `_replace` gives them another heading.
5. `sections(record)` yields Facts, Prose, Table, Figure or Text. It reads the record and nothing else.
6. `document` combines a record, its `sections` and its `rows`. `cli` passes it to `cli.output.write`.

Code that several commands need is in `parts` (question, layouts, pools, assumptions, evidence, limits, memory ...). A command
imports `parts` and `formats`, never another command; only the page does. If only separate pools, a picture or a simulation
need a module, import it where it is used.
"""
