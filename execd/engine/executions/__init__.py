"""Commands and cells as executions: from the request to the exit reason, and what is kept of
them."""
