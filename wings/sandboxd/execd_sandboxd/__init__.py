"""The dialect of sandboxd's gRPC half, process.v1.ProcessService."""
