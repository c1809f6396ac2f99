"""execd: the daemon inside a sandbox pod.

The warden and the zygote load this file in interpreters without execd's packages, so this file
imports nothing. The package, the image's labels and the replies take the version from here; the
projects of the wings repeat it.
"""

__version__ = "0.1.0"
