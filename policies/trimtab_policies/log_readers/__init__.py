"""Training logs as people have them -> points: one module per format, no file is opened here.

The flow: a format's `rows` turns bytes into `Row`s under the names the log uses; `naming` finds the metric each of them
is; `reading` checks, merges and counts, and gives `LogPoint`s. `registry` holds the table of formats and chooses.

Add a format by a module with a `READER`, and its line in `registry.READERS`.
"""
