"""Pure judgement of metric records: no I/O, no clock of its own.

The flow is the order of the modules: `policy` (what a GuardPolicy says) and `lineage` (which records survive) go into
`reductions` and `detectors`, then `evaluation` (a Verdict per rule), then `decision` (one action).
"""
