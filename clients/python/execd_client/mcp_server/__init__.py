"""``execctl mcp``: the tools of a sandbox in the Model Context Protocol. The packages are the extra
``mcp``; only ``tools`` and ``serving`` import the SDK."""
