"""execd: the daemon inside a sandbox pod. The warden imports this package too, so it must stay
empty of imports."""

__version__ = "0.1.0"
