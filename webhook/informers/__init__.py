"""What the cluster looks like now, kept current by one list-and-watch a resource type.

`reflector` owns the loop: it lists, watches, reconnects, and tells a sink what changed. `handlers` are the
sinks: they turn objects into records and limits in the ledger. Neither decides anything.
"""
