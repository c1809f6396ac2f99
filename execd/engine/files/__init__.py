"""Files for the event loop: ``execd.files`` on threads."""
