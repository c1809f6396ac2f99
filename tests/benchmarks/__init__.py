"""The benchmarks as an instrument: their arithmetic, their protocols, their plots, and a tiny
run."""
