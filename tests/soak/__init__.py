"""The mixed load of benchmarks/soak: the load calls every route and compares every reply."""
