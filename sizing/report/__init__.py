"""Reports: one file a command, from the library's answer to a `formats.view.Document` that any format writes. Nothing prints.

To add a command, or convert one, its file here has, in this order (`step.py` and `memory.py` are short examples):

1. record types: named tuples of plain values, fields as JSON has them, the last of the main one `schema`;
2. `record(answer, ...) -> Record`: fills it; raises InputError where the library says that something is refused;
3. `rows(record) -> Rows`: the list that makes CSV rows, by `rows_of(records, columns, labels)`: field names or quantities;
4. columns as `Quantity`, those that several commands show from `parts.quantities`, with `_replace` for another heading;
5. `sections(record)`: yields Facts, Prose, Table, Figure or Text; reads the record alone, never what it was made from;
6. `document`: of a record, its `sections` and its `rows`; `cli` passes it to `cli.output.write`.

Records, builders and words that several commands need stand in `parts` (question, layouts, pools, assumptions, bands, limiting,
memory ...). A command imports `parts` and `formats`, never another command; only the page does. Import what only separate
pools, a picture or a simulation need where it is used.
"""
