"""Measures execd beside a FastAPI server of the same contract; see ``__main__``.

``compare`` measures two checkouts of execd side by side.
"""
