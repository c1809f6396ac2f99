"""The dialect of E2B: envd, and the code interpreter."""
