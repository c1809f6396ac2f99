"""Archives: tar and zip, packed and unpacked under a root."""
