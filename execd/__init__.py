"""execd: the daemon inside a sandbox pod.

The warden and the zygote load this file in interpreters without execd's packages, so this file
imports nothing. The version is here and nowhere else: the package, the image's labels and the
replies take it from here.
"""

__version__ = "0.1.0"
