"""Give the image's loader variables, which the launcher has hidden, their names back: this Python's
loader has run, and the programs that Python starts belong to the image. See launcher.c."""

import os

PREFIX = "EXECD_LOADER_"

for _name in [name for name in os.environ if name.startswith(PREFIX)]:
    os.environ[_name.removeprefix(PREFIX)] = os.environ.pop(_name)
