"""The page /docs in a browser: Chromium, without a window."""
