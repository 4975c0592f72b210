"""llmsize: how many GPUs an LLM service needs, how sure that is, and what it costs.

The package is a house of rooms on floors. A file imports from its own room and from rooms on floors below:

    cli                         options to a question, call, render; the only room that prints
    report                      answers to documents: one file a command
    planning, calibration       money and time; constants refitted from measurements
    answers                     what the library does: search, confirm, compare, vary, draw curves
    evidence                    measured rows against predictions
    engine                      the scheduler, simulated; caches on their way between pools
    question, replica           everything that is asked, resolved; one engine instance: layouts, step times, capacity
    catalog, model, formats     names and files to specs; operations, memory, attention; documents to text
    specs                       the vocabulary: frozen, validated types, units, errors
"""

__version__ = "0.1.0"
