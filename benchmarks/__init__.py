"""Measures execd beside a FastAPI server of the same contract; see ``__main__``."""
