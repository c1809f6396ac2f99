"""The dialect of agent-sandbox's python-runtime."""
