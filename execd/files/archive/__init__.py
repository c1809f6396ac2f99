"""Tar and zip archives, packed and unpacked under a root."""
