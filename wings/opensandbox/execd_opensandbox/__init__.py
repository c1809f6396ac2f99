"""The dialect of OpenSandbox's execd, on a port of its own."""
